"""What makes a link behave beside its delay: htb and bridges."""
