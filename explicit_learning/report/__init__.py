"""What a person looks at afterwards: tables and pages."""
