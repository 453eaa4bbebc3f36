"""How users write: tensors over dims, their definitions, gradients, modules and optimizers."""
