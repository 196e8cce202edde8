"""For every test: no example of a property has to end within a time, because other work may hold the cores."""

from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
