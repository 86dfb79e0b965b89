"""SGLang's CPU kernels in plain torch: right and slow, for tests where no wheel of them exists.

``sgl_kernel`` for CPUs is not on PyPI; SGLang 0.5.23 imports it on any CPU. Only what a dense decoder with chains of
drafted tokens calls is here; whatever else is imported by name raises when it is called.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch

__version__ = "0.0.0"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """Write each request's slots, which lie one after the other in ``out_cache_loc``, into its table row."""
    at = 0
    for row, start, end in _rows(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[at : at + end - start].to(req_to_token.dtype)
        at += end - start


def assign_extend_cache_locs_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
) -> None:
    """The inverse: read each request's slots from its table row."""
    at = 0
    for row, start, end in _rows(req_pool_indices, start_offset, end_offset):
        out_cache_loc[at : at + end - start] = req_to_token[row, start:end].to(out_cache_loc.dtype)
        at += end - start


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    pool_len: int,
    topk: int,
    num_cols: int,
) -> None:
    """Each request's ``topk * num_cols`` slots after its tokens."""
    width = topk * num_cols
    ends = seq_lens + width
    assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, seq_lens, ends, out_cache_loc, pool_len)


def build_draft_decode_metadata_cpu(
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    topk: int,
    num_steps: int,
    pool_len: int,
) -> torch.Tensor:
    """The table rows of the drafting requests [B, pool_len]; chains only."""
    _only_chains(topk)
    return req_to_token[req_pool_indices.long(), :pool_len].contiguous()


def fill_bonus_tokens_cpu(
    accept_tokens: torch.Tensor, accept_lens: torch.Tensor, bonus_tokens: torch.Tensor, stride: int
) -> None:
    """The last accepted token of each request."""
    last = torch.arange(len(accept_lens)) * stride + accept_lens.long() - 1
    bonus_tokens.copy_(accept_tokens.flatten()[last])


def fill_accept_out_cache_loc_cpu(
    accept_index: torch.Tensor, out_cache_loc: torch.Tensor, accept_out_cache_loc: torch.Tensor
) -> None:
    """The slots of the accepted tokens, packed to the front."""
    accepted = out_cache_loc[accept_index[accept_index >= 0].long()]
    accept_out_cache_loc[: len(accepted)] = accepted


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Links and positions of chains; attention to a chain is causal and reads no mask."""
    _only_chains(topk)
    n, steps = draft_token_num, torch.arange(draft_token_num)
    tree_mask.fill_(True)
    positions.view(-1, n).copy_(verified_seq_len[:, None] + steps)
    retrive_index.copy_(torch.arange(retrive_index.numel()).view(-1, n))
    retrive_next_token.copy_(torch.where(steps < n - 1, steps + 1, -1).expand(retrive_next_token.shape))
    retrive_next_sibling.fill_(-1)


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk down each tree while the target's own choice is among the children.

    Args:
        predicts: [B * n], written: the target's choice after each accepted node.
        accept_index: [B, depth], written: the accepted nodes as indices into ``predicts``.
        accept_token_num: [B], written: how many drafted tokens are accepted.
        candidates, retrive_index, retrive_next_token, retrive_next_sibling: [B, n].
        target_predict: [B, n], the target's choice after each node.
    """
    choices = target_predict.flatten().tolist()
    for b in range(len(candidates)):
        children, siblings = retrive_next_token[b].tolist(), retrive_next_sibling[b].tolist()
        tokens, places = candidates[b].tolist(), retrive_index[b].tolist()
        node, accepted = 0, [places[0]]
        while len(accepted) < accept_index.shape[1]:
            child = children[node]
            while child != -1 and tokens[child] != choices[places[node]]:
                child = siblings[child]
            if child == -1:
                break
            node = child
            accepted.append(places[node])
        accept_index[b, : len(accepted)] = torch.tensor(accepted, dtype=accept_index.dtype)
        accept_token_num[b] = len(accepted) - 1
        for place in accepted:
            predicts[place] = choices[place]


def copy_all_layer_kv_cache_cpu(
    data_ptrs: torch.Tensor, strides: torch.Tensor, tgt_loc: torch.Tensor, src_loc: torch.Tensor
) -> None:
    """Move slots of every layer's buffers, given by address and bytes a slot; sources may be overwritten."""
    moves = [(t, s) for t, s in zip(tgt_loc.tolist(), src_loc.tolist(), strict=True) if t != s]
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        held = [ctypes.string_at(base + source * stride, stride) for _, source in moves]
        for (target, _), data in zip(moves, held, strict=True):
            ctypes.memmove(base + target * stride, data, stride)


def extend_attention_cpu(
    q: torch.Tensor,
    k: torch.Tensor | None,
    v: torch.Tensor | None,
    o: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_seq_lens: torch.Tensor,
    extend_start_loc: torch.Tensor,
    max_len_extend: int,
    scaling: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
    tree_mask: torch.Tensor | None,
    is_causal: bool,
) -> None:
    """Attention of new tokens, whose keys and values are in the buffers already, to all up to themselves.

    Args:
        q, o: [tokens, heads, width].
        tree_mask: bool [B * n * n] over the new tokens of each request, or None: causal.
    """
    at_mask = 0
    for row, length, new, start in _rows(req_pool_indices, seq_lens, extend_seq_lens, extend_start_loc):
        mask = _mask(length, new, sliding_window)
        if tree_mask is not None:
            mask[:, length - new :] &= tree_mask[at_mask : at_mask + new * new].view(new, new)
            at_mask += new * new
        slots = req_to_token[row, :length].long()
        _attend(q, o, slice(start, start + new), k_buffer[slots], v_buffer[slots], mask, scaling, logit_cap)


def decode_attention_cpu(
    q: torch.Tensor,
    k_buffer: torch.Tensor,
    v_buffer: torch.Tensor,
    k_scale: float,
    v_scale: float,
    o: torch.Tensor,
    key: torch.Tensor | None,
    value: torch.Tensor | None,
    loc: torch.Tensor,
    attn_logits: torch.Tensor,
    req_to_token: torch.Tensor,
    req_pool_indices: torch.Tensor,
    seq_lens: torch.Tensor,
    scaling: float,
    logit_cap: float,
    is_cross_attn: bool,
    sliding_window: int,
    encoder_lens: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    """Attention of one new token a request; its key and value are written to slot ``loc`` first."""
    if key is not None and value is not None:
        k_buffer[loc.long()] = key.view(-1, *k_buffer.shape[1:]).to(k_buffer.dtype)
        v_buffer[loc.long()] = value.view(-1, *v_buffer.shape[1:]).to(v_buffer.dtype)
    for i, (row, length) in enumerate(_rows(req_pool_indices, seq_lens)):
        slots = req_to_token[row, :length].long()
        mask = _mask(length, 1, sliding_window)
        _attend(q, o, slice(i, i + 1), k_buffer[slots], v_buffer[slots], mask, scaling, logit_cap)


def _rows(*columns: torch.Tensor) -> list[tuple[int, ...]]:
    """One tuple of ints a request."""
    return list(zip(*(column.tolist() for column in columns), strict=True))


def _mask(length: int, new: int, sliding_window: int) -> torch.Tensor:
    """bool [new, length]: what the last ``new`` tokens see; ``sliding_window`` tokens at most, if it is not 0."""
    distance = torch.arange(length - new, length)[:, None] - torch.arange(length)
    mask = distance >= 0
    return mask & (distance < sliding_window) if sliding_window > 0 else mask


def _attend(
    q: torch.Tensor,
    o: torch.Tensor,
    tokens: slice,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scaling: float,
    logit_cap: float,
) -> None:
    """Softmax attention of ``tokens`` of q [tokens, heads, width] to keys and values [length, kv heads, width]."""
    group = q.shape[1] // keys.shape[1]
    heads = q[tokens].transpose(0, 1).float()
    keys = keys.transpose(0, 1).float().repeat_interleave(group, 0)
    values = values.transpose(0, 1).float().repeat_interleave(group, 0)
    scores = heads @ keys.transpose(1, 2) * scaling
    if logit_cap > 0:
        scores = logit_cap * torch.tanh(scores / logit_cap)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    o[tokens] = (weights @ values).transpose(0, 1).to(o.dtype)


def _only_chains(topk: int) -> None:
    if topk != 1:
        raise NotImplementedError(f"topk={topk}: the stand-in for sgl_kernel knows chains of drafts only")


def __getattr__(name: str) -> Callable[..., Any]:
    """Kernels that are imported and not used."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"the stand-in for sgl_kernel has no {name}")

    return missing


for _op in (extend_attention_cpu, decode_attention_cpu):
    # A namespace of torch.ops takes plain attributes; neither op is compiled or captured here.
    setattr(torch.ops.sgl_kernel, _op.__name__, _op)
