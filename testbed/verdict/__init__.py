"""What a run's measurements mean: findings, the facts they become, and the verdict whether the emulation kept up."""
