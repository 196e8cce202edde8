"""The experiment as the user writes it: pydantic models and YAML."""
