"""What makes a link behave: htb, the delay backends (a file for each) and bridges."""
