// SPDX-License-Identifier: Apache-2.0
#pragma once
// Types that the C++ blocks of the documents use without defining them; see
// make_snippets.py.

#include "tessera/engine/data/data_loader.h"
#include "tessera/engine/parallel/parallel_run.h"
#include "tessera/pipeline/pipeline_executor.h"
#include "tessera/planner/step_plan.h"
#include "tessera/runtime/comm/parallel_groups.h"
#include "tessera/runtime/random/random_key.h"
#include "tessera/sharding/tensor_parallel/parallel_linear.h"
#include "tessera/sharding/tensor_parallel/tensor_plan.h"
#include "tessera/tasks/run_training.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/tessera.h"
#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/generation/text_generator.h"
#include "tessera/zoo/models/llama_like.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/vision/moco_model.h"

#include <torch/torch.h>

#include <iostream>

namespace docs {

/// The module of docs/wrap.md.
struct NetImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return down->forward(up->forward(x));
  }
  torch::nn::Linear up{nullptr};
  torch::nn::Linear down{nullptr};
};
TORCH_MODULE(Net);

/// A user's module without a holder.
struct MyModel : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    return x;
  }
};

struct Dataset {
  int64_t batches() const {
    return 0;
  }
  std::pair<torch::Tensor, torch::Tensor> batch(int64_t /*number*/) const {
    return {};
  }
};

struct Batch {
  at::Tensor ids;
};

inline at::Tensor read(const std::vector<size_t>& /*samples*/) {
  return {};
}

inline void train_on(const at::Tensor& /*ids*/) {}

} // namespace docs
