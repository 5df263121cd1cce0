# SPDX-License-Identifier: Apache-2.0
"""The decoder families of transformers that are tables over shared layers, one
language model each, in the variant with the most of the family's features."""
import transformers as hf

from zoo_shape import PAD

VOCAB = 29
TOKENS = dict(vocab_size=VOCAB, pad_token_id=PAD, bos_token_id=1,
              eos_token_id=2)
LOCAL = dict(sliding_window=4,
             layer_types=["sliding_attention", "full_attention"])
EMBEDDING = "model.embed_tokens.weight"
KEY = "model.layers.0.self_attn.k_proj.weight"


def small(kind, **changes):
    """Two heads that share keys and values."""
    return kind(**{**dict(
        hidden_size=8, intermediate_size=12, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1,
        max_position_embeddings=32), **TOKENS, **changes})


def wide(kind, **changes):
    """Two such pairs, of which ranks have one each."""
    return small(kind, **{**dict(hidden_size=16, num_attention_heads=4,
                                 num_key_value_heads=2), **changes})


def model(name, config, *grads):
    kind = getattr(hf, name + "ForCausalLM")
    return kind, config, list(grads) if len(grads) == 3 else [
        EMBEDDING, KEY, *grads]


NORM = "model.layers.1.post_attention_layernorm.weight"
UP = "model.layers.1.mlp.up_proj.weight"
QUERY_NORM = "model.layers.1.self_attn.q_norm.weight"
MODELS = {
    "mistral": model("Mistral", small(hf.MistralConfig, sliding_window=4,
                                      head_dim=6), NORM),
    "ministral": model("Ministral", small(hf.MinistralConfig, head_dim=6, **LOCAL), NORM),
    "phi": model("Phi", small(hf.PhiConfig, qk_layernorm=True),
                 EMBEDDING, "model.layers.0.self_attn.q_layernorm.weight",
                 "lm_head.bias"),
    "phi3": model("Phi3", small(
        hf.Phi3Config, sliding_window=4, rope_parameters=dict(
            rope_type="default", rope_theta=10000.0,
            partial_rotary_factor=0.5)),
        EMBEDDING, "model.layers.0.self_attn.qkv_proj.weight",
        "model.layers.1.mlp.gate_up_proj.weight"),
    "stablelm": model("StableLm", wide(
        hf.StableLmConfig, num_attention_heads=2, num_key_value_heads=2,
        use_qkv_bias=True, use_parallel_residual=True),
        "model.layers.1.input_layernorm.bias"),
    "starcoder2": model("Starcoder2", small(
        hf.Starcoder2Config, sliding_window=4),
        "model.layers.1.mlp.c_fc.bias"),
    "olmo": model("Olmo", small(hf.OlmoConfig), UP),
    "olmo2": model("Olmo2", wide(hf.Olmo2Config), QUERY_NORM),
    "olmo3": model("Olmo3", wide(hf.Olmo3Config, **LOCAL, rope_parameters=dict(
        full_attention=dict(
            rope_type="yarn", rope_theta=500000.0, factor=4.0,
            original_max_position_embeddings=8),
        sliding_attention=dict(rope_type="default", rope_theta=500000.0))),
        QUERY_NORM),
    "smollm3": model("SmolLM3", small(
        hf.SmolLM3Config, no_rope_layers=[1, 0], use_sliding_window=True,
        sliding_window=4), NORM),
    "granite": model("Granite", small(
        hf.GraniteConfig, embedding_multiplier=3.0, logits_scaling=0.5,
        residual_multiplier=0.6, attention_multiplier=1.5), NORM),
    "cohere": model("Cohere", small(hf.CohereConfig, logit_scale=0.5,
                                    rope_theta=100.0), UP),
    "cohere2": model("Cohere2", small(hf.Cohere2Config, logit_scale=2.0,
                                      **LOCAL), UP),
    "nemotron": model("Nemotron", small(hf.NemotronConfig), NORM),
    "arcee": model("Arcee", small(hf.ArceeConfig, mlp_bias=True), NORM),
    "gemma": model("Gemma", small(hf.GemmaConfig, head_dim=6), NORM),
    "gemma3_text": model("Gemma3", wide(
        hf.Gemma3TextConfig, head_dim=6, query_pre_attn_scalar=3, **LOCAL,
        rope_parameters=dict(
            full_attention=dict(rope_type="linear", factor=4.0,
                                rope_theta=1e6),
            sliding_attention=dict(rope_type="default", rope_theta=100.0))),
        QUERY_NORM),
    "seed_oss": model("SeedOss", small(hf.SeedOssConfig, head_dim=6),
                      "model.layers.1.self_attn.v_proj.bias"),
    "ernie4_5": model("Ernie4_5", small(
        hf.Ernie4_5Config, head_dim=6, use_bias=True, rope_theta=100.0),
        "model.layers.1.mlp.down_proj.bias"),
    "helium": model("Helium", small(hf.HeliumConfig, head_dim=4,
                                    rope_theta=100.0), NORM),
    "exaone4": model("Exaone4", wide(hf.Exaone4Config, **LOCAL), QUERY_NORM),
    "gpt_neo": model("GPTNeo", hf.GPTNeoConfig(
        **TOKENS, hidden_size=8, num_layers=2, num_heads=2,
        max_position_embeddings=23, window_size=4,
        attention_types=[[["local", "global"], 1]]),
        "transformer.wte.weight",
        "transformer.h.0.attn.attention.k_proj.weight",
        "transformer.h.1.mlp.c_proj.bias"),
    "mpt": model("Mpt", hf.MptConfig(
        **TOKENS, d_model=12, n_layers=2, n_heads=3,
        max_seq_len=32),
        "transformer.wte.weight", "transformer.blocks.0.attn.Wqkv.weight",
        "transformer.blocks.1.norm_2.weight"),
    "falcon": model("Falcon", hf.FalconConfig(
        **TOKENS, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
        ffn_hidden_size=12, bias=True, max_position_embeddings=32),
        "transformer.word_embeddings.weight",
        "transformer.h.0.self_attention.query_key_value.weight",
        "transformer.h.1.input_layernorm.weight"),
}
