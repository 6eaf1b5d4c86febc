"""JAX: ``run.track(train=perdure.jax.Pytree(state))``."""

from perdure.extras import require

require("jax", extra="jax")

from perdure.capture.pytrees import Pytree  # noqa: E402 - without the check the error would not say what to install

__all__ = ["Pytree"]
