"""Results for the programs that people follow their experiments with: written from a record, once its run is over."""
