"""For every test: properties are tried on the same examples every time, so that a change is not blamed for a failure
that was there before; `make test-properties` tries them on new ones. No example has to end within a time, because other
work may hold the cores."""

from hypothesis import settings

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("exploring", deadline=None, print_blob=True)
settings.load_profile("repeatable")
