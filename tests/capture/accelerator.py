"""
An accelerator that is not there: streams, events and tensors that behave as those of a device do, at their worst.

What is queued on a stream does not happen until somebody waits for it. Then it happens in the most harmful order that
the events allow: copies as late as they may, or as early. A program that is right in both orders has its events where
they are needed. Kernels are functions that are launched; a copy from a tensor of the device to the host is one.
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import torch


class Event:
    """A point in a stream's queue."""

    def __init__(self, device: Accelerator) -> None:
        self._device = device
        self.has_happened = False

    def synchronize(self) -> None:
        """Return once everything before it has happened."""
        self._device.run_until(self)


class Stream:
    """A queue of work that is done in order."""

    def __init__(self, device: Accelerator) -> None:
        self._device = device
        self._queue: list[Any] = []

    def launch(self, kernel: Any) -> None:
        """Queue work."""
        self._queue.append(kernel)

    def record_event(self) -> Event:
        """An event that happens when all has been done that is queued now."""
        event = Event(self._device)
        self._queue.append(event)
        return event

    def wait_event(self, event: Event) -> None:
        """Have what is queued from now on wait for an event."""
        self._queue.append(("wait", event))

    def wait_stream(self, other: Stream) -> None:
        """Have what is queued from now on wait for all that is queued on another stream now."""
        self.wait_event(other.record_event())

    def __enter__(self) -> Stream:
        self._device.entered.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._device.entered.pop()

    def advance(self) -> bool:
        """Do one thing if that is allowed now; returns whether it was."""
        if not self._queue:
            return False
        first = self._queue[0]
        if isinstance(first, tuple) and not first[1].has_happened:
            return False
        self._queue.pop(0)
        if isinstance(first, Event):
            first.has_happened = True
        elif callable(first):
            first()
        return True


class Accelerator:
    """
    One device.

    Args:
        copies_first: Whether streams other than the default one are as early as they may be, or as late.
    """

    def __init__(self, *, copies_first: bool) -> None:
        self._copies_first = copies_first
        self.may_run = threading.Event()
        """Cleared to hold everything back, whoever waits for it, until a program has queued what it wants to queue."""
        self.may_run.set()
        self.default = Stream(self)
        self.entered = [self.default]
        self._streams = [self.default]

    # What torch calls its parts

    def current_stream(self) -> Stream:
        """The stream that work is queued on."""
        return self.entered[-1]

    def make_stream(self) -> Stream:
        """Another stream."""
        self._streams.append(Stream(self))
        return self._streams[-1]

    def run_until(self, event: Event) -> None:
        """Do what the events allow, in the order of this device, until an event has happened."""
        assert self.may_run.wait(30)
        order = self._streams[::-1] if self._copies_first else self._streams
        while not event.has_happened:
            if not any(stream.advance() for stream in order):
                raise AssertionError("every stream waits for another")

    def tensor(self, values: torch.Tensor) -> DeviceTensor:
        """A tensor in the memory of the device."""
        made = values.clone().as_subclass(DeviceTensor)
        made.place = self
        return made

    def launch(self, tensor: torch.Tensor, kernel: Any) -> None:
        """Queue a kernel that writes to a tensor: torch counts it at once, the device does it when it comes to it."""
        torch._C._increment_version([tensor])
        memory = torch.Tensor.as_subclass(tensor.detach(), torch.Tensor)
        # What a kernel writes does not move the counter, which has been moved.
        self.current_stream().launch(lambda: kernel(memory.numpy()))


class DeviceTensor(torch.Tensor):
    """A tensor that says it lies on the device; copying it to the host is queued."""

    place: Accelerator

    @property
    def is_cpu(self) -> bool:
        return False

    @property
    def device(self) -> Any:
        return self.place

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.copy_ and isinstance(args[1], DeviceTensor):
            target, source = args[0], args[1]
            memory = source.detach().as_subclass(torch.Tensor).numpy()
            source.place.current_stream().launch(lambda: target.numpy().__setitem__(..., memory))
            return target
        result = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(result, DeviceTensor):
            result.place = next(each.place for each in args if isinstance(each, DeviceTensor))
        return result


class Torch:
    """The torch of a program that has such devices."""

    accelerator = SimpleNamespace(current_stream=Accelerator.current_stream)

    @staticmethod
    def Stream(device: Accelerator) -> Stream:  # noqa: N802 - as in torch
        """A new stream of a device."""
        return device.make_stream()

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)
