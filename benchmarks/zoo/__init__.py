"""Models and training scripts from outside packages, plainly and with Elbowroom."""
