// SPDX-License-Identifier: Apache-2.0
#pragma once
// Types that the C++ blocks of the documents use without defining them; see
// make_snippets.py.

#include "tessera/blocks.h"
#include "tessera/parallel.h"
#include "tessera/planner/step_plan.h"
#include "tessera/runtime/random/random_key.h"
#include "tessera/tasks/run_training.h"
#include "tessera/tasks/text_classifier.h"
#include "tessera/tessera.h"
#include "tessera/trainer.h"
#include "tessera/zoo.h"
#include "tessera/zoo/models/llama_like.h"
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
