"""What is made of a data set before training: pictures refined by diffusion, the models for it, and their checks."""
