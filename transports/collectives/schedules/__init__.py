"""Parts of schedules that several collectives are made of."""
