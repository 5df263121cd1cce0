// SPDX-License-Identifier: Apache-2.0
#pragma once
// Sequence models as other people write them for LibTorch. Nothing in this
// file knows that they will be trained in pieces.

#include <torch/torch.h>

#include <string>
#include <tuple>
#include <vector>

namespace strangers {

/// A GPT whose head is tied by assignment, after both were registered: the
/// head's own weight stays registered and never gets a gradient.
struct GptBlockImpl : torch::nn::Module {
  GptBlockImpl(int64_t width, int64_t heads)
      : heads(heads),
        ln_1(torch::nn::LayerNormOptions({width})),
        ln_2(torch::nn::LayerNormOptions({width})),
        c_attn(width, 3 * width),
        c_proj(width, width),
        mlp(torch::nn::Linear(width, 4 * width),
            torch::nn::GELU(),
            torch::nn::Linear(4 * width, width)) {
    register_module("ln_1", ln_1);
    register_module("c_attn", c_attn);
    register_module("c_proj", c_proj);
    register_module("ln_2", ln_2);
    register_module("mlp", mlp);
  }

  torch::Tensor forward(torch::Tensor x) {
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    auto qkv = c_attn(ln_1(x)).chunk(3, /*dim=*/-1);
    for (auto& part : qkv) {
      part = part.view({B, T, heads, C / heads}).transpose(1, 2);
    }
    auto att = qkv[0].matmul(qkv[1].transpose(-2, -1)) /
        std::sqrt(static_cast<double>(C / heads));
    const auto mask = torch::ones({T, T}, torch::kBool).triu(1);
    att = att.masked_fill(mask, -1e9).softmax(-1);
    auto y = att.matmul(qkv[2]).transpose(1, 2).reshape({B, T, C});
    x = x + c_proj(y);
    return x + mlp->forward(ln_2(x));
  }

  int64_t heads;
  torch::nn::LayerNorm ln_1, ln_2;
  torch::nn::Linear c_attn, c_proj;
  torch::nn::Sequential mlp;
};
TORCH_MODULE(GptBlock);

struct GptImpl : torch::nn::Module {
  GptImpl(int64_t vocabulary, int64_t width, int64_t blocks, int64_t context)
      : wte(vocabulary, width),
        wpe(context, width),
        ln_f(torch::nn::LayerNormOptions({width})),
        lm_head(torch::nn::LinearOptions(width, vocabulary).bias(false)) {
    register_module("wte", wte);
    register_module("wpe", wpe);
    for (int64_t i = 0; i < blocks; ++i) {
      h->push_back(GptBlock(width, 2));
    }
    register_module("h", h);
    register_module("ln_f", ln_f);
    register_module("lm_head", lm_head);
    lm_head->weight = wte->weight;
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    auto x = wte(tokens) + wpe(torch::arange(tokens.size(1)));
    for (auto& block : *h) {
      x = block->as<GptBlock>()->forward(x);
    }
    return lm_head(ln_f(x));
  }

  torch::nn::Embedding wte, wpe;
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f;
  torch::nn::Linear lm_head;
};
TORCH_MODULE(Gpt);

/// Encoder-decoder of single cells, stepped in a loop, the decoder fed with
/// its own output.
struct CellDecoderImpl : torch::nn::Module {
  CellDecoderImpl(int64_t input, int64_t hidden)
      : encoder(register_module("encoder", torch::nn::GRUCell(input, hidden))),
        decoder(register_module("decoder", torch::nn::LSTMCell(input, hidden))),
        out(register_module("out", torch::nn::Linear(hidden, input))) {}

  /// x: [time, batch, input]; as many steps come out.
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::zeros({x.size(1), decoder->options.hidden_size()});
    for (const auto& step : x.unbind(0)) {
      h = encoder(step, h);
    }
    std::tuple<torch::Tensor, torch::Tensor> state{h, torch::zeros_like(h)};
    auto y = x[-1];
    std::vector<torch::Tensor> outputs;
    for (int64_t t = 0; t < x.size(0); ++t) {
      state = decoder(y, state);
      y = out(std::get<0>(state));
      outputs.push_back(y);
    }
    return torch::stack(outputs);
  }

  torch::nn::GRUCell encoder;
  torch::nn::LSTMCell decoder;
  torch::nn::Linear out;
};
TORCH_MODULE(CellDecoder);

/// Two-layer bidirectional LSTM with a projection back to the vocabulary.
struct BiLstmModelImpl : torch::nn::Module {
  BiLstmModelImpl(int64_t vocabulary, int64_t width)
      : embed(torch::nn::EmbeddingOptions(vocabulary, width).padding_idx(0)),
        rnn(torch::nn::LSTMOptions(width, width)
                .num_layers(2)
                .bidirectional(true)
                .batch_first(true)
                .dropout(0.1)),
        head(2 * width, vocabulary) {
    embed = register_module("embed", embed);
    rnn = register_module("rnn", rnn);
    head = register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    auto [y, state] = rnn(embed(tokens));
    return head(torch::dropout(y, 0.1, is_training()));
  }

  torch::nn::Embedding embed;
  torch::nn::LSTM rnn;
  torch::nn::Linear head;
};
TORCH_MODULE(BiLstmModel);

/// torch::nn::Transformer with embeddings around it.
struct TranslatorImpl : torch::nn::Module {
  TranslatorImpl(int64_t vocabulary, int64_t width)
      : source(vocabulary, width),
        target(vocabulary, width),
        transformer(torch::nn::TransformerOptions(width, 2, 2, 2)
                        .dim_feedforward(2 * width)
                        .dropout(0.0)),
        head(width, vocabulary) {
    register_module("source", source);
    register_module("target", target);
    register_module("transformer", transformer);
    register_module("head", head);
  }

  torch::Tensor forward(const torch::Tensor& from, const torch::Tensor& to) {
    const auto mask = torch::nn::TransformerImpl::generate_square_subsequent_mask(
        to.size(0));
    auto y = transformer->forward(
        source(from), target(to), /*src_mask=*/{}, /*tgt_mask=*/mask);
    return head(y);
  }

  torch::nn::Embedding source, target;
  torch::nn::Transformer transformer;
  torch::nn::Linear head;
};
TORCH_MODULE(Translator);

} // namespace strangers
