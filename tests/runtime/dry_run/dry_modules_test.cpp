// SPDX-License-Identifier: Apache-2.0
// Forward and backward of LibTorch's modules in a dry run have the shapes of a
// real run, and convolutions take the memory of one.
#include "tessera/runtime/dry_run/dry_run.h"

#include "tessera/runtime/profile/cpu_memory_counter.h"

#include "support/expect_error.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace tessera::runtime::dry_modules_test {

namespace {

namespace nn = torch::nn;

using Tensors = std::vector<at::Tensor>;
using Sizes = std::vector<int64_t>;

struct Case {
  std::string name;
  /// Builds a module, runs it forward and backward.
  /// @return its results and all gradients.
  std::function<Tensors()> train;
};

/// The number of threads of operators, while it lives.
class Threads {
 public:
  explicit Threads(int count) : former_(at::get_num_threads()) {
    at::set_num_threads(count);
  }
  ~Threads() {
    at::set_num_threads(former_);
  }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int former_;
};

Tensors trained(Tensors results, const Tensors& leaves) {
  at::Tensor loss = torch::zeros({});
  for (const at::Tensor& result : results) {
    if (result.requires_grad()) {
      loss = loss + result.abs().sum().to(torch::kFloat);
    }
  }
  loss.backward();
  for (const at::Tensor& leaf : leaves) {
    results.push_back(leaf.grad());
  }
  return results;
}

at::Tensor leaf(const Sizes& sizes) {
  return torch::rand(sizes).requires_grad_();
}

Tensors joined(Tensors first, const Tensors& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

/// @param make a module holder.
template <typename Make>
Case layer(std::string name, Make make, Sizes sizes) {
  return {std::move(name), [make, sizes] {
            auto module = make();
            const at::Tensor x = leaf(sizes);
            return trained(
                {module->forward(x)}, joined(module->parameters(), {x}));
          }};
}

/// @param make a recurrent layer.
template <typename Make>
Case recurrent(std::string name, Make make, Sizes sizes) {
  return {std::move(name), [make, sizes] {
            auto module = make();
            const at::Tensor x = leaf(sizes);
            return trained(
                {std::get<0>(module->forward(x))},
                joined(module->parameters(), {x}));
          }};
}

Case function(
    std::string name,
    std::function<at::Tensor(const at::Tensor&)> call,
    Sizes sizes) {
  return {std::move(name), [call, sizes] {
            const at::Tensor x = leaf(sizes);
            return trained({call(x)}, {x});
          }};
}

/// Numbers below `end` that have values in a dry run, because they exist
/// before.
at::Tensor indices(int64_t end, const Sizes& sizes) {
  return torch::arange(c10::multiply_integers(sizes))
      .remainder(end)
      .view(sizes);
}

std::vector<Case> convolutions() {
  std::vector<Case> cases;
  // More examples than are run, and few.
  for (const int64_t rows : {int64_t{2}, int64_t{40}}) {
    const std::string suffix = " of " + std::to_string(rows);
    cases.push_back(layer(
        "Conv1d" + suffix,
        [] { return nn::Conv1d(nn::Conv1dOptions(6, 16, 3).padding(1)); },
        {rows, 6, 200}));
    cases.push_back(layer(
        "Conv2d" + suffix,
        [] { return nn::Conv2d(nn::Conv2dOptions(3, 32, 3).padding(1)); },
        {rows, 3, 32, 32}));
    cases.push_back(layer(
        "Conv2d 1x1" + suffix,
        [] { return nn::Conv2d(nn::Conv2dOptions(16, 1, 1)); },
        {rows, 16, 30, 30}));
    cases.push_back(layer(
        "Conv2d groups" + suffix,
        [] { return nn::Conv2d(nn::Conv2dOptions(16, 32, 3).groups(4)); },
        {rows, 16, 30, 30}));
    cases.push_back(layer(
        "Conv2d depthwise, dilated, strided" + suffix,
        [] {
          return nn::Conv2d(
              nn::Conv2dOptions(16, 16, 3).groups(16).dilation(2).stride(2));
        },
        {rows, 16, 30, 30}));
    cases.push_back(layer(
        "Conv2d reflect" + suffix,
        [] {
          return nn::Conv2d(nn::Conv2dOptions(8, 8, 3).padding(1).padding_mode(
              torch::kReflect));
        },
        {rows, 8, 20, 20}));
    cases.push_back(layer(
        "Conv3d" + suffix,
        [] { return nn::Conv3d(nn::Conv3dOptions(2, 8, 3).padding(1)); },
        {rows, 2, 9, 10, 11}));
    cases.push_back(layer(
        "ConvTranspose1d" + suffix,
        [] {
          return nn::ConvTranspose1d(
              nn::ConvTranspose1dOptions(8, 6, 3).stride(2).output_padding(1));
        },
        {rows, 8, 50}));
    cases.push_back(layer(
        "ConvTranspose2d" + suffix,
        [] {
          return nn::ConvTranspose2d(
              nn::ConvTranspose2dOptions(32, 16, 2).stride(2));
        },
        {rows, 32, 16, 16}));
    cases.push_back(layer(
        "ConvTranspose3d" + suffix,
        [] {
          return nn::ConvTranspose3d(
              nn::ConvTranspose3dOptions(8, 4, 2).stride(2).groups(2));
        },
        {rows, 8, 6, 7, 8}));
  }
  return cases;
}

std::vector<Case> recurrences() {
  return {
      recurrent(
          "RNN", [] { return nn::RNN(nn::RNNOptions(8, 16)); }, {5, 3, 8}),
      recurrent(
          "LSTM", [] { return nn::LSTM(nn::LSTMOptions(8, 16)); }, {5, 3, 8}),
      recurrent(
          "LSTM of many, both ways",
          [] {
            return nn::LSTM(nn::LSTMOptions(8, 16)
                                .num_layers(2)
                                .bidirectional(true)
                                .batch_first(true));
          },
          {50, 5, 8}),
      recurrent(
          "LSTM projected",
          [] { return nn::LSTM(nn::LSTMOptions(8, 16).proj_size(4)); },
          {5, 3, 8}),
      recurrent(
          "GRU",
          [] {
            return nn::GRU(
                nn::GRUOptions(8, 16).num_layers(2).bidirectional(true));
          },
          {5, 3, 8}),
      layer("GRUCell", [] { return nn::GRUCell(8, 16); }, {3, 8}),
      layer("RNNCell", [] { return nn::RNNCell(8, 16); }, {3, 8}),
      recurrent("LSTMCell", [] { return nn::LSTMCell(8, 16); }, {3, 8}),
      {"GRU packed",
       [lengths = torch::tensor({5, 2, 3})] {
         nn::GRU module(nn::GRUOptions(8, 16));
         const at::Tensor x = leaf({5, 3, 8});
         const auto packed = nn::utils::rnn::pack_padded_sequence(
             x, lengths, /*batch_first=*/false, /*enforce_sorted=*/false);
         const auto [y, last] = module->forward_with_packed_input(packed);
         return trained(
             {std::get<0>(nn::utils::rnn::pad_packed_sequence(y)), last},
             joined(module->parameters(), {x}));
       }},
  };
}

Case bag(std::string name, nn::EmbeddingBagOptions options) {
  return {std::move(name), [options, ids = indices(20, {4, 3})] {
            nn::EmbeddingBag module(options);
            return trained({module->forward(ids)}, module->parameters());
          }};
}

std::vector<Case> tables() {
  return {
      bag("EmbeddingBag mean", nn::EmbeddingBagOptions(20, 8)),
      bag("EmbeddingBag sum", nn::EmbeddingBagOptions(20, 8).mode(torch::kSum)),
      bag("EmbeddingBag max", nn::EmbeddingBagOptions(20, 8).mode(torch::kMax)),
      {"EmbeddingBag weighted",
       [ids = indices(20, {4, 3})] {
         nn::EmbeddingBag module(
             nn::EmbeddingBagOptions(20, 8).mode(torch::kSum));
         const at::Tensor weights = leaf({4, 3});
         return trained(
             {module->forward(ids, {}, weights)},
             joined(module->parameters(), {weights}));
       }},
      {"Embedding",
       [ids = indices(20, {4, 3})] {
         nn::Embedding module(nn::EmbeddingOptions(20, 8).padding_idx(0));
         return trained({module->forward(ids)}, module->parameters());
       }},
      {"Bilinear",
       [] {
         nn::Bilinear module(6, 7, 5);
         const at::Tensor a = leaf({4, 6});
         const at::Tensor b = leaf({4, 7});
         return trained(
             {module->forward(a, b)}, joined(module->parameters(), {a, b}));
       }},
      {"MultiheadAttention",
       [] {
         nn::MultiheadAttention module(
             nn::MultiheadAttentionOptions(16, 2).add_bias_kv(true));
         const at::Tensor x = leaf({5, 3, 16});
         return trained(
             {std::get<0>(module->forward(x, x, x))},
             joined(module->parameters(), {x}));
       }},
      layer(
          "TransformerEncoderLayer",
          [] {
            return nn::TransformerEncoderLayer(
                nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32));
          },
          {5, 3, 16}),
      {"AdaptiveLogSoftmaxWithLoss",
       [target = indices(50, {12})] {
         nn::AdaptiveLogSoftmaxWithLoss module(
             nn::AdaptiveLogSoftmaxWithLossOptions(16, 50, {10, 30}));
         const at::Tensor x = leaf({12, 16});
         return trained(
             {module->forward(x, target).output},
             joined(module->parameters(), {x}));
       }},
  };
}

std::vector<Case> paddings_and_pools() {
  std::vector<Case> cases{
      layer(
          "ReflectionPad1d", [] { return nn::ReflectionPad1d(2); }, {2, 3, 9}),
      layer(
          "ReflectionPad2d",
          [] { return nn::ReflectionPad2d(2); },
          {40, 3, 9, 8}),
      layer(
          "ReplicationPad1d",
          [] { return nn::ReplicationPad1d(2); },
          {2, 3, 9}),
      layer(
          "ReplicationPad2d",
          [] { return nn::ReplicationPad2d(2); },
          {40, 3, 9, 8}),
      layer(
          "ReplicationPad3d",
          [] { return nn::ReplicationPad3d(2); },
          {40, 3, 5, 6, 7}),
      layer("ZeroPad2d", [] { return nn::ZeroPad2d(2); }, {2, 3, 9, 8}),
      layer(
          "ConstantPad3d",
          [] { return nn::ConstantPad3d(1, 0.5); },
          {2, 3, 5, 6, 7}),
      layer("MaxPool1d", [] { return nn::MaxPool1d(2); }, {2, 3, 9}),
      layer("MaxPool2d", [] { return nn::MaxPool2d(2); }, {2, 3, 9, 8}),
      layer("MaxPool3d", [] { return nn::MaxPool3d(2); }, {40, 3, 5, 6, 7}),
      layer("AvgPool1d", [] { return nn::AvgPool1d(2); }, {2, 3, 9}),
      layer("AvgPool2d", [] { return nn::AvgPool2d(2); }, {2, 3, 9, 8}),
      layer("AvgPool3d", [] { return nn::AvgPool3d(2); }, {2, 3, 5, 6, 7}),
      layer(
          "AdaptiveAvgPool1d",
          [] { return nn::AdaptiveAvgPool1d(4); },
          {2, 3, 9}),
      layer(
          "AdaptiveAvgPool2d",
          [] { return nn::AdaptiveAvgPool2d(4); },
          {40, 3, 9, 8}),
      layer(
          "AdaptiveAvgPool3d",
          [] { return nn::AdaptiveAvgPool3d(2); },
          {40, 3, 5, 6, 7}),
      layer(
          "AdaptiveMaxPool1d",
          [] { return nn::AdaptiveMaxPool1d(4); },
          {2, 3, 9}),
      layer(
          "AdaptiveMaxPool2d",
          [] { return nn::AdaptiveMaxPool2d(4); },
          {2, 3, 9, 8}),
      layer(
          "AdaptiveMaxPool3d",
          [] { return nn::AdaptiveMaxPool3d(2); },
          {2, 3, 5, 6, 7}),
      layer(
          "FractionalMaxPool2d",
          [] {
            return nn::FractionalMaxPool2d(
                nn::FractionalMaxPool2dOptions(2).output_size(4));
          },
          {2, 3, 9, 8}),
      layer("LPPool2d", [] { return nn::LPPool2d(2.0, 2); }, {2, 3, 9, 8}),
      layer(
          "Unfold",
          [] { return nn::Unfold(nn::UnfoldOptions(3)); },
          {40, 3, 9, 8}),
      layer(
          "Fold",
          [] {
            return nn::Fold(nn::FoldOptions({9, 8}, 3));
          },
          {40, 27, 42}),
      layer("PixelShuffle", [] { return nn::PixelShuffle(2); }, {2, 8, 3, 3}),
      layer(
          "PixelUnshuffle", [] { return nn::PixelUnshuffle(2); }, {2, 8, 4, 4}),
      {"MaxUnpool2d",
       [] {
         const at::Tensor x = leaf({2, 3, 8, 8});
         nn::MaxPool2d pool(2);
         const auto [y, places] = pool->forward_with_indices(x);
         return trained({nn::MaxUnpool2d(2)->forward(y, places)}, {x});
       }},
  };
  const std::vector<std::pair<std::string, nn::UpsampleOptions>> ways{
      {"nearest", nn::UpsampleOptions().mode(torch::kNearest)},
      {"bilinear",
       nn::UpsampleOptions().mode(torch::kBilinear).align_corners(false)},
      {"bicubic",
       nn::UpsampleOptions().mode(torch::kBicubic).align_corners(false)}};
  for (const auto& [name, options] : ways) {
    cases.push_back(layer(
        "Upsample " + name,
        [options = options] {
          return nn::Upsample(nn::UpsampleOptions(options).scale_factor(
              std::vector<double>{2.0, 2.0}));
        },
        {2, 3, 5, 6}));
  }
  return cases;
}

std::vector<Case> norms() {
  return {
      layer("BatchNorm1d", [] { return nn::BatchNorm1d(6); }, {4, 6, 5}),
      layer("BatchNorm2d", [] { return nn::BatchNorm2d(6); }, {4, 6, 5, 5}),
      layer("BatchNorm3d", [] { return nn::BatchNorm3d(6); }, {4, 6, 5, 5, 2}),
      layer(
          "InstanceNorm2d",
          [] {
            return nn::InstanceNorm2d(
                nn::InstanceNorm2dOptions(6).affine(true));
          },
          {4, 6, 5, 5}),
      layer("GroupNorm", [] { return nn::GroupNorm(3, 6); }, {4, 6, 5, 5}),
      layer(
          "LayerNorm",
          [] { return nn::LayerNorm(nn::LayerNormOptions({6})); },
          {4, 5, 6}),
      layer(
          "LocalResponseNorm",
          [] { return nn::LocalResponseNorm(2); },
          {4, 6, 5, 5}),
      layer("CrossMapLRN2d", [] { return nn::CrossMapLRN2d(3); }, {4, 6, 5, 5}),
  };
}

/// A loss of a result and a target, both [8, 6].
template <typename Make>
Case loss(std::string name, Make make) {
  return {std::move(name), [make] {
            auto module = make();
            const at::Tensor x = leaf({8, 6});
            return trained({module->forward(x, torch::rand({8, 6}))}, {x});
          }};
}

/// A loss whose targets are classes.
template <typename Make>
Case class_loss(std::string name, Make make, Sizes sizes, Sizes targets) {
  return {std::move(name), [make, sizes, target = indices(5, targets)] {
            auto module = make();
            const at::Tensor x = leaf(sizes);
            return trained({module->forward(x, target)}, {x});
          }};
}

std::vector<Case> losses() {
  const auto sign = indices(2, {8}) * 2 - 1;
  return {
      loss("L1Loss", [] { return nn::L1Loss(); }),
      loss("MSELoss", [] { return nn::MSELoss(); }),
      loss("SmoothL1Loss", [] { return nn::SmoothL1Loss(); }),
      loss("HuberLoss", [] { return nn::HuberLoss(); }),
      loss("BCELoss", [] { return nn::BCELoss(); }),
      loss("BCEWithLogitsLoss", [] { return nn::BCEWithLogitsLoss(); }),
      loss("KLDivLoss", [] { return nn::KLDivLoss(); }),
      loss("PoissonNLLLoss", [] { return nn::PoissonNLLLoss(); }),
      loss("SoftMarginLoss", [] { return nn::SoftMarginLoss(); }),
      loss("HingeEmbeddingLoss", [] { return nn::HingeEmbeddingLoss(); }),
      loss(
          "MultiLabelSoftMarginLoss",
          [] { return nn::MultiLabelSoftMarginLoss(); }),
      class_loss(
          "CrossEntropyLoss",
          [] { return nn::CrossEntropyLoss(); },
          {8, 6},
          {8}),
      class_loss(
          "CrossEntropyLoss of images",
          [] { return nn::CrossEntropyLoss(); },
          {8, 6, 5, 4},
          {8, 5, 4}),
      class_loss("NLLLoss", [] { return nn::NLLLoss(); }, {8, 6}, {8}),
      class_loss(
          "MultiMarginLoss", [] { return nn::MultiMarginLoss(); }, {8, 6}, {8}),
      class_loss(
          "MultiLabelMarginLoss",
          [] { return nn::MultiLabelMarginLoss(); },
          {8, 6},
          {8, 6}),
      {"CosineEmbeddingLoss",
       [sign] {
         const at::Tensor a = leaf({8, 6});
         const at::Tensor b = leaf({8, 6});
         return trained(
             {nn::CosineEmbeddingLoss()->forward(a, b, sign)}, {a, b});
       }},
      {"MarginRankingLoss",
       [sign] {
         const at::Tensor a = leaf({8});
         const at::Tensor b = leaf({8});
         return trained({nn::MarginRankingLoss()->forward(a, b, sign)}, {a, b});
       }},
      {"TripletMarginLoss",
       [] {
         const at::Tensor a = leaf({8, 6});
         const at::Tensor b = leaf({8, 6});
         const at::Tensor c = leaf({8, 6});
         return trained({nn::TripletMarginLoss()->forward(a, b, c)}, {a, b, c});
       }},
      {"CTCLoss",
       [targets = indices(5, {3, 4}) + 1,
        inputs = torch::full({3}, 12, torch::kLong),
        lengths = torch::tensor({4, 2, 3})] {
         const at::Tensor x = leaf({12, 3, 7});
         return trained(
             {nn::CTCLoss()->forward(
                 torch::log_softmax(x, -1), targets, inputs, lengths)},
             {x});
       }},
  };
}

std::vector<Case> functions() {
  const at::Tensor grid = torch::rand({40, 4, 5, 2});
  const at::Tensor mask = indices(3, {8, 6}).eq(0);
  const at::Tensor order = indices(6, {8, 6});
  return {
      function(
          "fft",
          [](const at::Tensor& x) {
            return torch::fft::irfft(torch::fft::rfft(x) * 2, 16);
          },
          {8, 16}),
      function(
          "fft2",
          [](const at::Tensor& x) {
            return torch::real(torch::fft::ifft2(torch::fft::fft2(x)));
          },
          {3, 8, 16}),
      function(
          "stft",
          [](const at::Tensor& x) {
            return torch::view_as_real(torch::stft(
                x, 16, 4, 16, torch::hann_window(16), false, true, true));
          },
          {3, 64}),
      function(
          "sort",
          [](const at::Tensor& x) { return std::get<0>(x.sort(1)); },
          {8, 6}),
      function(
          "topk",
          [](const at::Tensor& x) { return std::get<0>(x.topk(2)); },
          {8, 6}),
      function(
          "kthvalue",
          [](const at::Tensor& x) { return std::get<0>(x.kthvalue(2)); },
          {8, 6}),
      function(
          "gather",
          [order](const at::Tensor& x) { return x.gather(1, order); },
          {8, 6}),
      function(
          "scatter",
          [order](const at::Tensor& x) {
            return torch::zeros({8, 6}).scatter_add(1, order, x);
          },
          {8, 6}),
      function(
          "scatter_reduce",
          [order](const at::Tensor& x) {
            return torch::zeros({8, 6}).scatter_reduce(1, order, x, "amax");
          },
          {8, 6}),
      function(
          "index_add",
          [ids = indices(4, {8})](const at::Tensor& x) {
            return torch::zeros({4, 6}).index_add(0, ids, x);
          },
          {8, 6}),
      function(
          "mask as index",
          [mask](const at::Tensor& x) { return x.index({mask}); },
          {8, 6}),
      function(
          "masked_select",
          [mask](const at::Tensor& x) { return x.masked_select(mask); },
          {8, 6}),
      function(
          "repeat_interleave",
          [times = indices(3, {8})](const at::Tensor& x) {
            return x.repeat_interleave(times, 0);
          },
          {8, 6}),
      function(
          "grid_sample",
          [grid](const at::Tensor& x) {
            return nn::functional::grid_sample(
                x,
                grid,
                nn::functional::GridSampleFuncOptions().align_corners(false));
          },
          {40, 3, 8, 8}),
      function(
          "cumsum, cumprod, logcumsumexp",
          [](const at::Tensor& x) {
            return x.cumsum(1) + x.cumprod(1) + x.logcumsumexp(1);
          },
          {8, 6}),
      function(
          "cummax",
          [](const at::Tensor& x) { return std::get<0>(x.cummax(1)); },
          {8, 6}),
      function(
          "cdist",
          [](const at::Tensor& x) {
            return torch::cdist(x, torch::ones({5, 6}));
          },
          {8, 6}),
      function(
          "einsum",
          [](const at::Tensor& x) {
            return torch::einsum("bi,ij->bj", {x, torch::ones({6, 7})});
          },
          {8, 6}),
      function(
          "matrix_exp",
          [](const at::Tensor& x) { return torch::matrix_exp(x); },
          {6, 6}),
      function(
          "solve",
          [](const at::Tensor& x) {
            return torch::linalg_solve(torch::eye(6) + x, torch::eye(6));
          },
          {6, 6}),
      function(
          "svd",
          [](const at::Tensor& x) { return torch::linalg_svdvals(x); },
          {8, 6}),
      function(
          "sparse product",
          [](const at::Tensor& x) {
            const at::Tensor graph = torch::sparse_coo_tensor(
                torch::stack({indices(8, {12}), indices(5, {12})}),
                torch::ones({12}),
                {8, 8});
            return at::_sparse_mm(graph, x);
          },
          {8, 6}),
      function(
          "activations",
          [](const at::Tensor& x) {
            return torch::glu(x).sum() + torch::elu(x) + torch::selu(x) +
                   torch::celu(x) + torch::gelu(x) + torch::silu(x) +
                   torch::mish(x) + torch::softplus(x) + torch::hardshrink(x) +
                   torch::softshrink(x) + torch::hardsigmoid(x) +
                   torch::leaky_relu(x) + torch::rrelu(x) + torch::relu6(x) +
                   torch::log_sigmoid(x) + torch::hardtanh(x) +
                   torch::hardswish(x) + torch::threshold(x, 0.1, 0.2);
          },
          {8, 6}),
      function(
          "dropouts",
          [](const at::Tensor& x) {
            return torch::dropout(x, 0.1, true) +
                   torch::alpha_dropout(x, 0.1, true) +
                   torch::feature_dropout(x, 0.1, true);
          },
          {8, 6}),
      function(
          "distances",
          [](const at::Tensor& x) {
            return torch::pairwise_distance(x, torch::ones({8, 6})) +
                   torch::cosine_similarity(x, torch::ones({8, 6}));
          },
          {8, 6}),
      function(
          "norms",
          [](const at::Tensor& x) {
            return x.norm() + torch::linalg_norm(x) + x.logsumexp(1).sum() +
                   x.var() + x.median() + x.amax() + x.renorm(2, 0, 1).sum();
          },
          {8, 6}),
  };
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = convolutions();
  for (const auto& more :
       {recurrences(),
        tables(),
        paddings_and_pools(),
        norms(),
        losses(),
        functions()}) {
    cases.insert(cases.end(), more.begin(), more.end());
  }
  return cases;
}

void expect_same_shapes(const Case& each) {
  SCOPED_TRACE(each.name);
  const Tensors real = each.train();
  Tensors dry;
  try {
    DryRun run;
    dry = each.train();
  } catch (const std::exception& error) {
    ADD_FAILURE() << error.what();
    return;
  }
  ASSERT_EQ(dry.size(), real.size());
  for (size_t i = 0; i < real.size(); ++i) {
    ASSERT_EQ(dry[i].defined(), real[i].defined()) << i;
    if (real[i].defined()) {
      EXPECT_EQ(dry[i].sizes(), real[i].sizes()) << i;
      EXPECT_EQ(dry[i].strides(), real[i].strides()) << i;
      EXPECT_EQ(dry[i].scalar_type(), real[i].scalar_type()) << i;
    }
  }
}

int64_t real_peak(const std::function<Tensors()>& train) {
  install_cpu_memory_counter();
  train(); // what libraries keep from then on
  const int64_t before = cpu_bytes_live();
  reset_cpu_bytes_peak();
  train();
  return cpu_bytes_peak() - before;
}

int64_t dry_peak(const std::function<Tensors()>& train) {
  DryRun run;
  train();
  return run.heap().peak_bytes();
}

class Threaded : public testing::TestWithParam<int> {};

} // namespace

TEST_P(Threaded, ModulesHaveTheirShapes) {
  const Threads threads(GetParam());
  for (const Case& each : all_cases()) {
    expect_same_shapes(each);
  }
}

TEST_P(Threaded, ConvolutionsTakeTheirMemory) {
  const Threads threads(GetParam());
  for (const Case& each : convolutions()) {
    const auto real = static_cast<double>(real_peak(each.train));
    // Each allocation has a header of 64 bytes in a real run.
    EXPECT_NEAR(
        static_cast<double>(dry_peak(each.train)), real, 0.02 * real + 4096)
        << each.name;
  }
}

INSTANTIATE_TEST_SUITE_P(DryModules, Threaded, testing::Values(1, 2));

TEST(DryModules, NameWhatToDoWhereValuesDecideShapes) {
  const at::Tensor mask = indices(3, {100}).eq(0);
  DryRun run;
  const at::Tensor x = torch::rand({100});
  run.name_storage(x, "head");
  for (const auto& call : std::vector<std::function<void()>>{
           [&] { x.nonzero(); },
           [&] { x.masked_select(x > 0); },
           [&] { x.index({x > 0}); },
           [&] { at::_unique2(x); }}) {
    expect_error(
        call, {"dry run", "depends on the values", "'head'", "torch::where"});
  }
  EXPECT_EQ(x.index({mask}).numel(), 34);
}

} // namespace tessera::runtime::dry_modules_test
