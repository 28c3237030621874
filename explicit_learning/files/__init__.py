"""Reading strictly and writing whole: what every other part of the package stands on."""
