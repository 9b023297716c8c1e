"""The parts of a script that build the model, find its blocks, compute its loss, and apply methods to it.

Pure: takes a trial and returns source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bench.export.standalone.python_source import SourcePart, joined
from bench.records.trial import Trial
from bench.training.methods.masked_head import METHODS as MASKED
from bench.training.models import families, family_of
from bench.training.models.footprint import FamilyWithFormulas
from bench.training.models.generic import without_repository_code
from bench.training.models.model import SDPA, Model
from bench.training.setting import in_group, sharded_by
from bench.training.vendor import transformers_inside, transformers_source

MASKED_HEAD = MASKED[0].name
OWN_FIELDS = ("timm", "num_classes", "num_labels")  # of an architecture of timm that are no options of it
NN = "from torch import nn"


def architecture(model: Model) -> dict[str, Any]:
    """Return the fields with which the script builds a model, without code in a repository."""
    given: dict[str, Any] = without_repository_code(family_of(model).complete(model))
    if model.family == "timm":
        return {name: value for name, value in given.items() if name not in OWN_FIELDS}
    return given


def head_of(trial: Trial) -> str | None:
    """Return the attribute of the model's head, if the setting calls the head apart from the body."""
    aim = trial.model.recipe.aim
    if not (aim.has_text_head and {"compile-blocks", MASKED_HEAD} & set(trial.setting)):
        return None
    if trial.model.recipe.target_length:  # the script does not know what decoders do with their output
        return None
    return transformers_source.head_name(trial.model.family, aim.mapping)


def needs_blocks(trial: Trial) -> bool:
    """Whether the script has to find the model's repeated blocks."""
    by_block = {"compile-blocks", "checkpointing"} & set(trial.setting)
    return (
        bool(by_block) or sharded_by(trial.setting) == "fsdp" or trial.model.recipe.optimizer.updates_matrices
    )


def attention_of(trial: Trial) -> str | None:
    """Return the attention that transformers builds the model with; None if its family has no choice."""
    family = families().get(trial.model.family)
    if trial.model.family == "timm" or (family and family.kernels != SDPA):
        return None
    if "kernels" not in trial.setting:
        return "eager"
    return "fused" if transformers_source.takes_registered_attention(trial.model.family) else "sdpa"


def model_parts(trial: Trial) -> Iterator[SourcePart]:
    """Yield the parts in the order in which the script has them."""
    if attention_of(trial) == "fused":
        yield FUSED_ATTENTION
    yield _build(trial)
    if needs_blocks(trial) and trial.model.family not in families():
        yield TIMM_BLOCKS if trial.model.family == "timm" else LISTED_BLOCKS
    yield _with_loss(trial)
    if {"compile", "compile-blocks", "checkpointing"} & set(trial.setting):
        yield _methods(trial)


FUSED_ATTENTION = SourcePart(
    '''
def fused_mask(*given, **asked):
    """Return the mask that transformers asks for; None where "causal" or "all" says as much."""
    length, keys, window = asked["q_length"], asked["kv_length"], asked.get("local_size")
    simple = asked.get("allow_is_causal_skip", True) and length == keys
    simple = simple or asked.get("allow_is_bidirectional_skip", False)
    if simple and asked.get("attention_mask") is None and (window is None or window >= keys):
        return None
    return masking_utils.sdpa_mask(*given, **asked)


def fused_attention(module, query, key, value, attention_mask, **options):
    """Call PyTorch's fused attention, with queries and keys that rotary positions left in fp32."""
    query, key = query.to(value.dtype), key.to(value.dtype)
    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
''',
    (
        "from transformers import AttentionInterface, masking_utils",
        "from transformers.integrations.sdpa_attention import sdpa_attention_forward",
    ),
)


def _build(trial: Trial) -> SourcePart:
    """Return `build_model`, which builds the model as its family does."""
    model = trial.model
    before, imports = _build_settings(trial)
    family = families().get(model.family)
    if model.family == "timm":
        made = _build_timm(trial)
    elif model.family == "mamba":
        made = BUILD_MAMBA
    elif isinstance(family, FamilyWithFormulas):
        made = _build_known(trial, family)
    else:
        made = _build_any(trial)
    body = "\n".join(f"    {line}" if line else "" for line in [*before, *made[0]])
    return SourcePart(
        f'''
def build_model(device):
    """Build the model with random weights."""
{body}
    # The weights are random here. To go on from your own: model.load_state_dict(...)
    return model.float().to(device).train()
''',
        ("import torch", *imports, *made[1]),
    )


Lines = tuple[list[str], list[str]]  # lines of a function, and the imports that they need


def _build_settings(trial: Trial) -> Lines:
    """Return the lines that set transformers' options before a model is built."""
    lines: list[str] = []
    if attention_of(trial) == "fused":
        lines += [
            'AttentionInterface.register("fused", fused_attention)',
            'masking_utils.AttentionMaskInterface.register("fused", fused_mask)',
            "masking_utils.find_packed_sequence_indices = lambda _positions: None  # one text a sample",
        ]
    if trial.model.family not in transformers_inside.MAMBA_SSM:
        return lines, []
    hidden = ", ".join(f'"{name}"' for name in transformers_inside.MAMBA_PACKAGES)
    lines += [
        "# transformers takes these kernels wherever it finds them; the trial had its plain code.",
        f"sys.modules.update(dict.fromkeys([{hidden}]))",
    ]
    return lines, ["import sys"]


def _build_timm(trial: Trial) -> Lines:
    lines = [
        f"set_fused_attn({'kernels' in trial.setting})",
        "with device:",
        "    model = timm.create_model(TIMM_MODEL, pretrained=False, num_classes=CLASSES, **ARCHITECTURE)",
    ]
    return lines, ["import timm", "from timm.layers import set_fused_attn"]


BUILD_MAMBA: Lines = (
    [
        "from transformers import MambaConfig, MambaForCausalLM",
        "",
        "config = MambaConfig(**ARCHITECTURE, use_cache=False)",
        "with device:",
        "    model = MambaForCausalLM(config)",
    ],
    [],
)


def _build_known(trial: Trial, family: FamilyWithFormulas) -> Lines:
    """Return the lines that build a model of a family with formulas by transformers' own classes."""
    config, kind = family.classes
    attention = attention_of(trial)
    options = ["use_cache=False"] if "tokens" in trial.model.recipe.aim.data else []
    options += [f'attn_implementation="{attention}"'] if attention else []
    lines = [
        f"config = {config}({', '.join(['**ARCHITECTURE', *options])})",
        "with device:",
        f"    model = {kind}(config)",
    ]
    return lines, [f"from transformers import {config}, {kind}"]


def _build_any(trial: Trial) -> Lines:
    """Return the lines that build a model of any other type of transformers by an Auto class."""
    aim, architecture = trial.model.recipe.aim, trial.model.architecture
    of_tokens = "tokens" in aim.data
    imports = [f"from transformers import AutoConfig, {aim.auto_class}"]
    lines = [
        f"config = AutoConfig.for_model(FAMILY, **ARCHITECTURE{', use_cache=False' if of_tokens else ''})",
        "config.architectures = []  # of several classes of models, take the first",
        "with device:",
        f'    model = {aim.auto_class}.from_config(config, attn_implementation="{attention_of(trial)}")',
    ]
    if architecture.get("tie_word_embeddings") is False and of_tokens:
        imports += [NN]
        lines += [
            "# Some classes, T5's for instance, share these weights with any configuration.",
            "head, embedding = model.get_output_embeddings(), model.get_input_embeddings()",
            "if head is not None and head.weight is embedding.weight:",
            "    head.weight = nn.Parameter(head.weight.detach().clone())",
        ]
    return lines, imports


def blocks_of(trial: Trial) -> str:
    """Return the expression for the model's repeated blocks."""
    family = families().get(trial.model.family)
    if trial.model.family == "convnext":
        return "[layer for stage in model.convnext.encoder.stages for layer in stage.layers]"
    return f"list(model.{family.layers})" if isinstance(family, FamilyWithFormulas) else "blocks_of(model)"


LISTED_BLOCKS = SourcePart(
    '''
def blocks_of(model):
    """Return the blocks of every stack: of the longest list, and of others of compound modules."""
    lists = {name: part for name, part in model.named_modules() if isinstance(part, nn.ModuleList)}
    inner = {name for name in lists for other in lists if name.startswith(f"{other}.")}
    outer = [items(part) for name, part in lists.items() if name not in inner]
    longest = max(outer, key=len, default=None)
    stacks = [one for one in outer if one is longest or all(map(is_compound, one))]
    return [block for stack in stacks for block in layers_of_stages(stack)] or [model]


def items(stack):
    """Return the items of a list, and those of lists inside of it, which are never called."""
    parts = [items(part) if isinstance(part, nn.ModuleList) else [part] for part in stack]
    return [item for part in parts for item in part]


def is_compound(module):
    return len(list(module.modules())) > 4


def layers_of_stages(stack):
    """Return the layers of stages, which differ in size, in order; the blocks of any other stack."""
    layers = [layers_of(stage) for stage in stack]
    sizes = {tuple(weight.shape for weight in one[-1].parameters()) for one in layers if one}
    stages = len(stack) > 1 and len(sizes) == len(stack)
    return [layer for one in layers for layer in one] if stages else stack


def layers_of(stage):
    """Return the items of the list that has most of a stage's weights, if all are of one class."""
    def weights(parts):
        return sum(weight.numel() for part in parts for weight in part.parameters())

    lists = [part for part in stage.modules() if isinstance(part, (nn.ModuleList, nn.Sequential))]
    layers = max(map(items, lists), key=weights, default=[])
    alike = len({type(layer) for layer in layers}) == 1 and all(map(is_compound, layers))
    return layers if alike and weights(layers) > weights([stage]) / 2 else []
''',
    (NN,),
)
TIMM_BLOCKS = SourcePart(
    '''
def blocks_of(model):
    """Return the innermost modules whose class stands repeatedly in the model's lists."""
    plain = (nn.ModuleList, nn.Sequential)
    lists = [part for part in model.modules() if isinstance(part, plain)]
    counts = Counter(type(b) for one in lists for b in one if len(list(b.modules())) > 4)
    repeated = {kind for kind, count in counts.items() if count > 1} - set(plain)
    blocks = [part for part in model.modules() if type(part) in repeated]
    inside = [(block, part) for block in blocks for part in block.modules() if part is not block]
    outer = {type(block) for block, part in inside if type(part) in repeated}
    return [block for block in blocks if type(block) not in outer] or [model]
''',
    ("from collections import Counter", NN),
)


CROSS_ENTROPY = SourcePart(
    '''
def loss_of(logits, labels):
    """Return the mean loss of all positions, without those labelled -100."""
    return F.cross_entropy(logits.float().flatten(0, -2), labels.flatten(), ignore_index=-100)
'''
)
ERROR_OF_PIXELS = SourcePart(
    '''
def loss_of(found, batch):
    """Return the mean absolute error of a pixel in the hidden patches."""
    pixels, hidden = batch["pixel_values"], batch["bool_masked_pos"]
    side = round(hidden.size(1) ** 0.5)
    patch = pixels.size(-1) // side
    mask = hidden.view(-1, 1, side, side).repeat_interleave(patch, 2).repeat_interleave(patch, 3)
    return ((found.float() - pixels.float()) * mask).abs().mean()
'''
)
INPUTS = 'inputs = {name: part for name, part in batch.items() if name != "labels"}'
MASKED_POSITIONS = (
    "# The positions that have a label, equally many in every sample, come first.",
    "first = (labels == -100).int().argsort(dim=1, stable=True)[:, :ASKED]",
    "features = features.gather(1, first.unsqueeze(-1).expand(-1, -1, features.size(-1)))",
    "labels = labels.gather(1, first)",
)


def _with_loss(trial: Trial) -> SourcePart:
    """Return the loss and the module that computes it, in one function if the head is called apart."""
    if head := head_of(trial):
        return _with_tail(head, masked=MASKED_HEAD in trial.setting)
    if trial.model.recipe.objective == "masked-image":
        loss, lines = ERROR_OF_PIXELS, ["return self.loss(self.model(**batch).reconstruction, batch)"]
    elif trial.model.family == "timm":
        loss, lines = CROSS_ENTROPY, ['return self.loss(self.model(batch["pixel_values"]), batch["labels"])']
    else:
        loss, lines = (
            CROSS_ENTROPY,
            [INPUTS, 'return self.loss(self.model(**inputs).logits, batch["labels"])'],
        )
    module = SourcePart(_module(lines, "\n        self.loss = loss_of"))
    functional = ("import torch.nn.functional as F",) if loss is CROSS_ENTROPY else ()
    return SourcePart(joined([loss, module]), (NN, *functional))


def _with_tail(head: str, *, masked: bool) -> SourcePart:
    chosen = MASKED_POSITIONS if masked else ()
    lines = [INPUTS, "features = self.model.base_model(**inputs).last_hidden_state"]
    if masked:
        lines += ['labels = batch["labels"]', *chosen, "return self.tail(features, labels)"]
    else:
        lines += ['return self.tail(features, batch["labels"])']
    tail = f"""
    def tail(self, features, labels):
        logits = self.model.{head}(features).float()
        return F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)
"""
    return SourcePart(_module(lines) + tail, (NN, "import torch.nn.functional as F"))


def _module(lines: list[str], kept: str = "") -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f'''
class WithLoss(nn.Module):
    """The model and its loss as one module."""

    def __init__(self, model):
        super().__init__()
        self.model = model{kept}

    def forward(self, batch):
{body}
'''


def changed_by_methods(trial: Trial) -> list[str]:
    """Return the parts that the setting's methods change: the module with the loss, the blocks, or both."""
    whole = ["whole"] if in_group(trial.setting, "compilation") else []
    return whole + (["blocks"] if {"compile-blocks", "checkpointing"} & set(trial.setting) else [])


def _methods(trial: Trial) -> SourcePart:
    setting, blocks, lines = trial.setting, [], []
    imports: list[str] = []
    compiled = in_group(setting, "compilation")
    if compiled:
        imports += ["import torch", "from torch._inductor.codegen.triton import TritonKernel"]
        lines += [line for line in COMPILER if trial.gpus > 1 or line != WHOLE_GRAPHS]
    if compiled == "compile":
        lines = [line for line in lines if line != WHOLE_GRAPHS] + ["whole.compile()"]
    if compiled == "compile-blocks":
        part = "tail" if head_of(trial) else "loss"
        lines += [f"whole.{part} = torch.compile(whole.{part}, dynamic=False)"]
        blocks += ["block.forward = torch.compile(block.forward, dynamic=False)"]
    if "checkpointing" in setting:
        imports += ["from functools import partial", "from torch.utils.checkpoint import checkpoint"]
        blocks += ["block.forward = partial(checkpoint, block.forward, use_reentrant=False)"]
    if blocks:
        lines += ["for block in blocks:", *(f"    {line}" for line in blocks)]
    body = "\n".join(f"    {line}" if line else "" for line in lines)
    return SourcePart(
        f'''
def apply_methods({", ".join(changed_by_methods(trial))}):
    """Change how the model trains, and not what it computes."""
{body}
''',
        tuple(imports),
    )


WHOLE_GRAPHS = "torch._dynamo.config.optimize_ddp = False  # split graphs break checkpointing (144035)"
COMPILER = (
    "torch._dynamo.config.fail_on_recompile_limit_hit = True  # never run uncompiled",
    "torch._dynamo.config.recompile_limit = 64  # blocks may all differ",
    WHOLE_GRAPHS,
    "load = TritonKernel.load",
    "",
    "def waiting_load(kernel, name, index):  # of what another loop wrote: pytorch issue 190517",
    '    waited_for = vars(kernel).setdefault("waited_for", set())',
    "    if name in kernel.cse.invalidated_stores - waited_for:",
    '        kernel.body.writeline("tl.debug_barrier()")',
    "        waited_for |= kernel.cse.invalidated_stores",
    "    return load(kernel, name, index)",
    "",
    "TritonKernel.load = waiting_load",
    'torch.compiler.config.cache_key_tag += "+waits"  # no cached kernels that do not wait',
)
