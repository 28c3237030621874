"""Model and adapter folders as files: their structure, identity and size, read without torch."""
