"""Configuration: the schema, its YAML files, and how they are read."""
