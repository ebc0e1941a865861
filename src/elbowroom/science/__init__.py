"""Real data and real models, one field of science a package."""
