"""Claims about experiments, judged by what was measured: formulas, a run's numbers, the judgement. Pure."""
