"""Training loops in the forms that people write, right ones and with one planted mistake each.

A form is a source with gaps; a mistake fills some of them otherwise. So each wrong loop has its right twin.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Loop(NamedTuple):
    """A loop and the rules it breaks, none or one."""

    name: str
    source: str
    rules: frozenset[str]


_HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"

# What stands in the gaps of a right loop.
_RIGHT = {
    "loss": "F.mse_loss(net(x), y)",
    "div": " / k",
    "mid": "pass",
    "zero": "opt.zero_grad()",
    "first": "pass",
    "last": " or i + 1 == len(loader)",
    "step": "opt.step()",
    "clip": "pass",
    "end": "pass",
    "sched": "sched.step()",
    "unscale": "scaler.unscale_(opt)",
}
MISTAKES = {
    "not-zeroed": {"zero": "pass"},
    "zeroed-too-often": {"first": "opt.zero_grad()"},
    "not-scaled": {"div": ""},
    "scaled-twice": {"div": " / k / k"},
    "extra-step": {"step": "pass", "end": "opt.step()"},
    "schedule-per-micro-batch": {"sched": "pass", "end": "sched.step()"},
    "clip-per-micro-batch": {"mid": "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"},
    "lost-remainder": {"last": ""},
    "mean-of-means": {"loss": "F.cross_entropy(net(x), y, ignore_index=-100)"},
    "clip-before-unscale": {"unscale": "pass"},
}

_SCRIPT = """
net = nn.Linear(4, 2)
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.StepLR(opt, 10)
k = 4
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        {first}
        ((LOSS){div}).backward()
        {mid}
        if (i + 1) % k == 0{last}:
            {step}
            {sched}
            {zero}
        {end}
"""
_FUNCTION = """
def train_epoch(net, loader, opt, sched, k, device):
    net.train()
    total = 0.0
    opt.zero_grad()
    for i, batch in enumerate(tqdm(loader, desc="train")):
        {first}
        x, y = batch[0].to(device), batch[1].to(device)
        loss = (LOSS){div}
        loss.backward()
        {mid}
        total += loss.item()
        if i % k == k - 1{last}:
            {step}
            {sched}
            {zero}
        {end}
        if i % 50 == 0:
            print(i, total)
    return total / len(loader)
"""
_WHILE = """
def fit(net, loader, epochs, accumulate):
    k = accumulate
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    epoch = 0
    while epoch < epochs:
        i = 0
        while i < len(loader):
            {first}
            x, y = loader[i]
            loss = LOSS
            loss = loss{div}
            loss.backward()
            {mid}
            if (i + 1) % k == 0{last}:
                {step}
                {sched}
                {zero}
            {end}
            i += 1
        epoch += 1
"""
_COUNTER = """
def run(net, loader, args):
    opt = torch.optim.Adam(net.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-3, total_steps=args.steps)
    k = args.grad_steps
    for epoch in range(args.epochs):
        waiting = 0
        for i, (x, y) in enumerate(loader):
            {first}
            loss = LOSS
            if k > 1:
                loss = loss{div}
            loss.backward()
            {mid}
            waiting += 1
            if waiting == k{last}:
                {step}
                {sched}
                {zero}
                waiting = 0
            {end}
"""
_TRAINER = """
class Trainer:
    def __init__(self, net, loader, k=8):
        self.net, self.loader, self.k = net, loader, k
        self.opt = torch.optim.AdamW(net.parameters())
        self.sched = torch.optim.lr_scheduler.StepLR(self.opt, 100)

    def fit(self, epochs):
        for epoch in range(epochs):
            self._epoch()

    def _epoch(self):
        net, opt, sched, loader, k = self.net, self.opt, self.sched, self.loader, self.k
        for i, (x, y) in enumerate(loader):
            {first}
            self._backward(net, x, y)
            {mid}
            if (i + 1) % self.k == 0{last}:
                self._update(opt, sched)
            {end}

    def _backward(self, net, x, y):
        k = self.k
        loss = LOSS
        (loss{div}).backward()

    def _update(self, opt, sched):
        {step}
        {sched}
        {zero}
"""
_SCALER = """
def train(net, loader, k, epochs):
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    sched = torch.optim.lr_scheduler.StepLR(opt, 3)
    scaler = torch.amp.GradScaler("cuda")
    for epoch in range(epochs):
        for i, (x, y) in enumerate(loader):
            {first}
            with torch.autocast("cuda"):
                loss = (LOSS){div}
            scaler.scale(loss).backward()
            {mid}
            if (i + 1) % k == 0{last}:
                {unscale}
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                {step}
                scaler.update()
                {sched}
                {zero}
            {end}
"""
_LIGHTNING = """
class Module(LightningModule):
    def __init__(self, k):
        super().__init__()
        self.automatic_optimization = False
        self.k = k

    def training_step(self, batch, batch_idx):
        opt, sched, net, k, i = self.optimizers(), self.lr_schedulers(), self.net, self.k, batch_idx
        x, y = batch
        {first}
        loss = (LOSS){div}
        self.manual_backward(loss)
        {mid}
        if (batch_idx + 1) % self.k == 0{last}:
            {step}
            {sched}
            {zero}
        {end}
        self.log("loss", loss)
"""
_ARGUMENTS = """
def main():
    args = parse()
    net = build(args)
    opt, sched = make_optimizer(net, args), make_scheduler(args)
    loader = DataLoader(dataset(args), batch_size=args.batch_size, shuffle=True)
    global_step = 0
    k = args.gradient_accumulation_steps
    for epoch in trange(int(args.num_train_epochs)):
        for i, batch in enumerate(loader):
            {first}
            x, y = (t.to(args.device) for t in batch)
            loss = LOSS
            if args.n_gpu > 1:
                loss = loss.mean()
            if args.gradient_accumulation_steps > 1:
                loss = loss{div}
            loss.backward()
            {mid}
            if (i + 1) % args.gradient_accumulation_steps == 0{last}:
                {step}
                {sched}
                {zero}
                global_step += 1
                if args.save_steps > 0 and global_step % args.save_steps == 0:
                    save(net, args)
            {end}
            if args.max_steps > 0 and global_step > args.max_steps:
                break
"""
_PLAIN = """
def train(net, loader, optimizer, criterion, epochs):
    for epoch in range(epochs):
        for x, y in loader:
            {zero}
            loss = criterion(net(x), y)
            loss.backward()
            {step}
"""
_INNER = """
def train(net, batches, k, steps):
    opt = torch.optim.AdamW(net.parameters())
    iterator = iter(batches)
    for step in range(steps):
        for micro_step in range(k):
            x, y = next(iterator)
            loss = F.mse_loss(net(x), y)
            loss = loss{div}
            loss.backward()
            {mid}
        {step}
        {zero}
"""
_ACCELERATE = """
def train(net, opt, sched, loader, k, epochs):
    accelerator = Accelerator(gradient_accumulation_steps=k)
    net, opt, loader, sched = accelerator.prepare(net, opt, loader, sched)
    for epoch in range(epochs):
        for x, y in loader:
            with accelerator.accumulate(net):
                loss = LOSS
                accelerator.backward(loss{div})
                {clip}
                opt.step()
                sched.step()
                opt.zero_grad()
"""
_CLOSURE = """
def train(net, loader, epochs):
    optimizer = torch.optim.LBFGS(net.parameters())
    for epoch in range(epochs):
        for x, y in loader:
            def closure():
                {zero}
                loss = F.mse_loss(net(x), y)
                loss.backward()
                return loss
            optimizer.step(closure)
"""

_WINDOWS = ("not-zeroed", "zeroed-too-often", "not-scaled", "scaled-twice", "extra-step", "schedule-per-micro-batch")
_ALL = (*_WINDOWS, "clip-per-micro-batch", "lost-remainder", "mean-of-means")
# Form -> its source, what stands in its gaps if not the usual, and the mistakes that it can hold.
_FORMS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "script": (_SCRIPT, {}, _ALL),
    "function": (_FUNCTION, {}, _ALL),
    "while": (_WHILE, {}, _ALL),
    "counter": (_COUNTER, {}, _ALL),
    "trainer": (_TRAINER, {}, tuple(m for m in _ALL if m != "extra-step")),
    "scaler": (
        _SCALER,
        {"step": "scaler.step(opt)"},
        ("not-zeroed", "zeroed-too-often", "not-scaled", "scaled-twice", "lost-remainder", "clip-before-unscale"),
    ),
    "lightning": (
        _LIGHTNING,
        {"last": " or self.trainer.is_last_batch"},
        ("not-zeroed", "zeroed-too-often", "not-scaled", "scaled-twice", "clip-per-micro-batch", "lost-remainder"),
    ),
    "arguments": (_ARGUMENTS, {}, _ALL),
    "plain": (_PLAIN, {"step": "optimizer.step()", "zero": "optimizer.zero_grad()"}, ("not-zeroed",)),
    "inner loop": (_INNER, {}, ("not-zeroed", "not-scaled", "scaled-twice", "clip-per-micro-batch")),
    "accelerate": (
        _ACCELERATE,
        {"div": "", "clip": "if accelerator.sync_gradients:\n    accelerator.clip_grad_norm_(net.parameters(), 1.0)"},
        ("scaled-twice", "clip-per-micro-batch"),
    ),
    "closure": (_CLOSURE, {"zero": "optimizer.zero_grad()"}, ("not-zeroed",)),
}
_OTHERWISE = {  # a mistake that another form makes in another way
    ("accelerate", "scaled-twice"): {"div": " / k"},
    ("accelerate", "clip-per-micro-batch"): {"clip": "accelerator.clip_grad_norm_(net.parameters(), 1.0)"},
}
# Loops that look odd and are right.
_RIGHT_TOO = {
    "zero first": ("script", {"zero": "pass", "first": "if i % k == 0:\n    opt.zero_grad()"}),
    "zero the model": ("function", {"zero": "net.zero_grad(set_to_none=True)"}),
    "zero by hand": ("while", {"zero": "for p in net.parameters():\n    p.grad = None"}),
    "clip once": ("arguments", {"step": "nn.utils.clip_grad_norm_(net.parameters(), 1.0)\nopt.step()"}),
    "shares": ("function", {"div": " * len(x) / window_items(i)"}),
    "sums over tokens": (
        "script",
        {"loss": "F.cross_entropy(net(x), y, ignore_index=-100, reduction='sum') / tokens", "div": ""},
    ),
    "gradients divided": (
        "trainer",
        {"div": "", "step": "for p in self.net.parameters():\n    p.grad /= self.k\nopt.step()"},
    ),
    "schedule by number": ("counter", {"sched": "pass", "end": "sched.step(epoch + i / len(loader))"}),
    "unlabelled tokens": ("arguments", {"loss": "F.cross_entropy(net(x), y)"}),
    "skips what is not finite": ("scaler", {"mid": "if not torch.isfinite(loss):\n    opt.zero_grad()\n    continue"}),
    "drops the tail": ("function", {"last": "", "first": "if i >= len(loader) // k * k:\n    break"}),
    "steps after the loop": ("counter", {"last": ""}),
}


def loops() -> Iterator[Loop]:
    """All of them, right and wrong, in a fixed order."""
    for form, (source, gaps, mistakes) in _FORMS.items():
        yield Loop(f"{form}, right", _filled(source, gaps), frozenset())
        for mistake in mistakes:
            changed = gaps | _changes(form, gaps, mistake)
            yield Loop(f"{form}, {mistake}", _filled(source, changed), frozenset([mistake]))
    for name, (form, changed) in _RIGHT_TOO.items():
        source, gaps, _ = _FORMS[form]
        if name == "steps after the loop":
            source = source.rstrip() + "\n        if waiting:\n            opt.step()\n            opt.zero_grad()\n"
        yield Loop(f"{form}, {name}", _filled(source, gaps | changed), frozenset())


def _changes(form: str, gaps: dict[str, str], mistake: str) -> dict[str, str]:
    if (form, mistake) in _OTHERWISE:
        return _OTHERWISE[form, mistake]
    changes = MISTAKES[mistake]
    return changes | {"end": gaps["step"]} if mistake == "extra-step" and "step" in gaps else changes


def _filled(source: str, gaps: dict[str, str]) -> str:
    values = _RIGHT | gaps
    lines = [_HEAD.rstrip()]
    for line in source.replace("LOSS", values["loss"]).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        lines += [indent + part for part in line.strip().format_map(values).splitlines() or [""]]
    return "\n".join(lines) + "\n"
