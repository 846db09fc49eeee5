"""Training of learned routers; needs the extra ``rl``. Import the modules by name."""
