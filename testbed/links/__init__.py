"""Links: what was asked of each, the tc commands that do it, the kernel's answer read back."""
