"""Peaks of training steps: what stages held, what a profile and a tracker say."""

import functools
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fx_bridge.storages.tensor_subclasses import tensors_in


class Tracker(TorchDispatchMode):
    """Bytes of all storages that were held or made and are not gone."""

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self.known = {}

    def hold(self, value):
        for tensor in tensors_in(value):
            storage = tensor.untyped_storage()
            if storage._cdata not in self.known:
                size = storage.nbytes()
                self.live += size
                self.peak = max(self.peak, self.live)
                gone = functools.partial(self.release, storage._cdata, size)
                self.known[storage._cdata] = weakref.ref(storage, gone)

    def release(self, address, size, _):
        self.live -= size
        del self.known[address]

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.hold(result)
        return result


def peak_of_stage(stage, inputs, in_flight, microbatches, is_last, has_gradients=True):
    """Run the steps of one stage as torch's pipeline stages do, with their buffers."""
    tracker = Tracker()
    for parameter in stage.parameters():
        parameter.grad = torch.zeros_like(parameter) if has_gradients else None
        tracker.hold(parameter.grad)
    tracker.hold([*stage.parameters(), *stage.buffers()])

    def buffers():
        copies = [x.detach().clone().requires_grad_(x.requires_grad) for x in inputs]
        tracker.hold(copies)
        return copies

    given = [buffers() for _ in range(microbatches)]
    with torch.random.fork_rng():
        outputs = tensors_in(stage(*given[0]))
    gradients = [
        [torch.ones_like(x) if x.requires_grad else None for x in outputs]
        for _ in range(0 if is_last else microbatches)
    ]
    tracker.hold(gradients)
    del outputs
    cache, returned = {}, []

    def backward(batch):
        outputs = cache.pop(batch)
        with tracker:
            if is_last:
                returned.append([x.detach() for x in outputs])
                sum(x.mean() for x in outputs).backward()
            else:
                pairs = [(x, g) for x, g in zip(outputs, gradients[batch], strict=True)]
                pairs = [(x, g) for x, g in pairs if g is not None]
                torch.autograd.backward(*map(list, zip(*pairs, strict=True)))
        for tensor in given[batch]:
            tensor.grad = None

    for step in range(microbatches + in_flight):
        if step >= in_flight:
            backward(step - in_flight)
        if step < microbatches:
            with tracker:
                cache[step] = tensors_in(stage(*given[step]))
    return tracker.peak


class Recording(torch.fx.Interpreter):
    """Keeps what every stage is called with."""

    def __init__(self, module):
        super().__init__(module)
        self.inputs = {}

    def call_module(self, target, args, kwargs):
        self.inputs[target] = args
        return super().call_module(target, args, kwargs)


def phase_peaks(profile):
    peaks = {}
    for point in profile.points:
        peaks[point.phase] = max(peaks.get(point.phase, 0), point.peak_bytes)
    return peaks


def tracked_peaks(tracker):
    peaks = dict(tracker.peaks)
    later = {phase: peaks.pop(phase) for phase in ("backward", "optimizer")}
    peaks.pop("end")
    return {"forward": max(peaks.values()), **later}
