// SPDX-License-Identifier: Apache-2.0
#include "trained_model.h"

#include "gpt2_model.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/zoo/models/registry.h"

#include <algorithm>
#include <string>

namespace tessera {

namespace {

template <typename Build>
auto built(bool is_lazy, const Build& build) {
  return is_lazy ? lazy(build) : build();
}

int64_t count_parameters(const torch::nn::Module& module) {
  int64_t numel = 0;
  for (const at::Tensor& parameter : module.parameters()) {
    numel += parameter.numel();
  }
  return numel;
}

} // namespace

double TrainedModel::operations_per_token(const ModelSize& size) const {
  return 6.0 * static_cast<double>(parameters - looked_up) +
         12.0 * static_cast<double>(size.layers * size.width * size.sequence);
}

TrainedModel make_gpt2(const ModelSize& size, bool is_lazy, bool helpers) {
  Gpt2Config config;
  config.layers = size.layers;
  config.width = size.width;
  config.heads = size.heads;
  config.vocabulary = size.vocabulary;
  config.positions = std::max(config.positions, size.sequence);
  const Gpt2 model = built(is_lazy, [&] { return Gpt2(config); });
  return {
      model.ptr(),
      [gpt2 = model.ptr(), helpers](const at::Tensor& ids) {
        return helpers ? gpt2->forward_with_helpers(ids) : gpt2->forward(ids);
      },
      count_parameters(*model),
      model->wpe->weight.numel()};
}

TrainedModel make_llama(const ModelSize& size, bool is_lazy, bool helpers) {
  const nlohmann::json config{
      {"model_type", "llama"},
      {"architectures", {"LlamaForCausalLM"}},
      {"hidden_size", size.width},
      {"num_hidden_layers", size.layers},
      {"num_attention_heads", size.heads},
      {"num_key_value_heads", size.key_value_heads},
      {"intermediate_size", size.intermediate},
      {"vocab_size", size.vocabulary},
      {"max_position_embeddings", size.sequence},
      {"rope_theta", 500000.0},
      {"rms_norm_eps", 1e-5},
      {"tie_word_embeddings", false}};
  const auto model = built(
      is_lazy, [&] { return zoo::from_config(config, {}, "train_gpt2"); });
  model->train();
  return {
      model,
      [model, helpers](const at::Tensor& ids) {
        zoo::ModelInput input;
        input.input_ids = ids;
        input.labels = ids;
        input.loss_only = helpers;
        return model->forward(input).loss;
      },
      count_parameters(*model),
      size.vocabulary * size.width};
}

} // namespace tessera
