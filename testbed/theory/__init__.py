"""What models say, beside what is measured. Pure; each model names its source."""
