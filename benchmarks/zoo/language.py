"""Language, sound and picture models of transformers and x-transformers, with random weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.zoo.entry import Subject, entry, pictures, tokens

VOCABULARY = 1024


def _causal(name: str, batch: int = 8, length: int = 192, **config: Any) -> Subject:
    """A causal language model by the name of its configuration; it returns loss and logits."""
    import transformers

    made = getattr(transformers, f"{name}Config")(vocab_size=VOCABULARY, **config)
    model = getattr(transformers, _CAUSAL.get(name, f"{name}ForCausalLM"))(made)
    draw = tokens(VOCABULARY, batch, length)

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        return model(input_ids=rows, labels=rows, use_cache=False).loss

    def batch_of(generator: torch.Generator) -> Tensor:
        return draw(generator)

    return Subject(model=model.train(), batch=batch_of, loss=loss)


_CAUSAL = {"GPT2": "GPT2LMHeadModel"}

_MODERN: dict[str, Any] = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@entry("gpt2", "transformers", calls_loss=True)
def gpt2() -> Subject:
    return _causal("GPT2", n_embd=192, n_layer=4, n_head=6, n_positions=192)


@entry("llama", "transformers", calls_loss=True)
def llama() -> Subject:
    return _causal("Llama", **_MODERN)


@entry("qwen3", "transformers", calls_loss=True)
def qwen3() -> Subject:
    return _causal("Qwen3", **_MODERN)


@entry("gemma2", "transformers", calls_loss=True)
def gemma2() -> Subject:
    return _causal("Gemma2", **_MODERN, query_pre_attn_scalar=32)


@entry("qwen3-moe", "transformers", calls_loss=True)
def qwen3_moe() -> Subject:
    return _causal(
        "Qwen3Moe", **_MODERN, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=192
    )


@entry("mamba", "transformers", calls_loss=True)
def mamba() -> Subject:
    return _causal("Mamba", batch=4, length=64, hidden_size=128, num_hidden_layers=2, state_size=8)


def _encoder(make: Callable[[Any], Any], config: Any) -> Subject:
    """A masked language model: labels where tokens were replaced, and padding at the end."""
    model = make(config)
    draw = tokens(VOCABULARY, 8, 160)

    def batch(generator: torch.Generator) -> dict[str, Tensor]:
        rows = draw(generator)
        is_hidden = torch.rand(rows.shape, generator=generator) < 0.15
        lengths = torch.randint(100, 161, (8, 1), generator=generator)
        mask = torch.arange(160) < lengths
        return {
            "input_ids": rows.masked_fill(is_hidden, 3),
            "labels": rows.masked_fill(~is_hidden | ~mask, -100),
            "attention_mask": mask.long(),
        }

    return Subject(model=model.train(), batch=batch, loss=lambda model, batch: model(**batch).loss)


_ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 192,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
}


@entry("bert", "transformers", calls_loss=True)
def bert() -> Subject:
    from transformers import BertConfig, BertForMaskedLM

    return _encoder(BertForMaskedLM, BertConfig(**_ENCODER))


@entry("albert", "transformers", calls_loss=True)
def albert() -> Subject:
    from transformers import AlbertConfig, AlbertForMaskedLM

    return _encoder(AlbertForMaskedLM, AlbertConfig(**_ENCODER, embedding_size=64))


@entry("modernbert", "transformers", calls_loss=True)
def modernbert() -> Subject:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    special |= {"cls_token_id": 1, "sep_token_id": 2}
    return _encoder(ModernBertForMaskedLM, ModernBertConfig(**_ENCODER, **special))


@entry("t5", "transformers", calls_loss=True)
def t5() -> Subject:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=192,
        d_kv=32,
        d_ff=512,
        num_layers=3,
        num_heads=6,
        feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )
    draw = tokens(VOCABULARY, 8, 128)

    def batch(generator: torch.Generator) -> dict[str, Tensor]:
        rows = draw(generator)
        return {"input_ids": rows, "labels": rows.flip(1)}

    return Subject(
        model=T5ForConditionalGeneration(config).train(),
        batch=batch,
        loss=lambda model, batch: model(**batch).loss,
    )


@entry("whisper", "transformers", calls_loss=True)
def whisper() -> Subject:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=128,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        max_source_positions=200,
        max_target_positions=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
        suppress_tokens=None,
    )
    draw = tokens(VOCABULARY, 8, 48)

    def batch(generator: torch.Generator) -> dict[str, Tensor]:
        sound = torch.randn(8, 80, 400, generator=generator)
        return {"input_features": sound, "labels": draw(generator)}

    return Subject(
        model=WhisperForConditionalGeneration(config).train(),
        batch=batch,
        loss=lambda model, batch: model(**batch).loss,
    )


@entry("clip", "transformers", calls_loss=True)
def clip() -> Subject:
    from transformers import CLIPConfig, CLIPModel

    small = {
        "hidden_size": 128,
        "intermediate_size": 512,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    config = CLIPConfig(
        text_config={**small, "vocab_size": VOCABULARY, "max_position_embeddings": 48},
        vision_config={**small, "image_size": 96, "patch_size": 8},
        projection_dim=64,
    )
    draw, paint = tokens(VOCABULARY, 16, 48), pictures(16, 3, (96, 96), 16)

    def batch(generator: torch.Generator) -> dict[str, Any]:
        return {
            "input_ids": draw(generator),
            "pixel_values": paint(generator)[0],
            "return_loss": True,
        }

    return Subject(
        model=CLIPModel(config).train(),
        batch=batch,
        loss=lambda model, batch: model(**batch).loss,
    )


@entry("segformer", "transformers")
def segformer() -> Subject:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    from benchmarks.zoo.entry import regions

    config = SegformerConfig(
        depths=[1, 1, 1, 1], hidden_sizes=[24, 48, 96, 128], decoder_hidden_size=96, num_labels=4
    )

    def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, target = batch
        logits = model(pixel_values=x).logits
        return functional.cross_entropy(functional.interpolate(logits, target.shape[1:]), target)

    return Subject(
        model=SegformerForSemanticSegmentation(config).train(),
        batch=regions(8, 3, (96, 96), 4),
        loss=loss,
    )


@entry("x-transformers", "x-transformers")
def x_transformers() -> Subject:
    from x_transformers import Decoder, TransformerWrapper

    model = TransformerWrapper(
        num_tokens=VOCABULARY,
        max_seq_len=192,
        attn_layers=Decoder(
            dim=192,
            depth=4,
            heads=6,
            attn_dim_head=32,
            rotary_pos_emb=True,
            use_rmsnorm=True,
            ff_swish=True,
            ff_glu=True,
        ),
    )
    draw = tokens(VOCABULARY, 8, 193)

    def loss(model: nn.Module, rows: Tensor) -> Tensor:
        logits = model(rows[:, :-1])
        return functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:])

    return Subject(model=model.train(), batch=draw, loss=loss)


@entry("llama-lora", "peft", calls_loss=True)
def llama_lora() -> Subject:
    import peft

    plain = _causal("Llama", **_MODERN)
    adapters = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.05)
    model: Any = peft.get_peft_model(plain.model, adapters)
    return Subject(model=model.train(), batch=plain.batch, loss=plain.loss)
