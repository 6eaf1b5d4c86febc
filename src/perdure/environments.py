"""What programs say of their environments, and ask about them after a restore."""

from perdure.capture.environments import new_beginning, register_environment

__all__ = ["new_beginning", "register_environment"]
