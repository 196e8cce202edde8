"""Small C programs that need no library, and the call of the compiler that builds them."""
