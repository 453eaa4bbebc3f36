"""The language that users write: tensors, gradients, modules, optimizers."""
