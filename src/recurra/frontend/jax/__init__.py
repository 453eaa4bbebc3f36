"""Import functions of JAX's libraries as equations: `rc.import_jax`."""
