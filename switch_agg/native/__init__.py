"""The C behind Python: each file here has a Python twin that the tests compare it with."""
