"""A replay ring as immutable segments."""


class RingBuffer: ...


def component_for(value: object) -> None:
    return None
