// SPDX-License-Identifier: Apache-2.0
#pragma once
// Image models as other people write them for LibTorch. Nothing in this file
// knows that they will be trained in pieces.

#include <torch/torch.h>

#include <vector>

namespace strangers {

inline torch::nn::Conv2d conv3x3(int64_t in, int64_t out, int64_t stride = 1) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3)
                               .stride(stride)
                               .padding(1)
                               .bias(false));
}

struct BasicBlockImpl : torch::nn::Module {
  BasicBlockImpl(int64_t in, int64_t out, int64_t stride)
      : conv1(conv3x3(in, out, stride)),
        conv2(conv3x3(out, out)),
        bn1(out),
        bn2(out) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    register_module("conv2", conv2);
    register_module("bn2", bn2);
    if (stride != 1 || in != out) {
      downsample = torch::nn::Sequential(
          torch::nn::Conv2d(
              torch::nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)),
          torch::nn::BatchNorm2d(out));
      register_module("downsample", downsample);
    }
  }

  torch::Tensor forward(torch::Tensor x) {
    auto identity = x;
    auto out = bn1(conv1(x)).relu_();
    out = bn2(conv2(out));
    if (!downsample.is_empty()) {
      identity = downsample->forward(x);
    }
    out += identity;
    return out.relu_();
  }

  torch::nn::Conv2d conv1, conv2;
  torch::nn::BatchNorm2d bn1, bn2;
  torch::nn::Sequential downsample{nullptr};
};
TORCH_MODULE(BasicBlock);

/// A small residual network with batch statistics and in-place additions.
struct ResNetImpl : torch::nn::Module {
  explicit ResNetImpl(int64_t classes)
      : conv1(conv3x3(3, 8)), bn1(8), fc(16, classes) {
    register_module("conv1", conv1);
    register_module("bn1", bn1);
    layer1 = torch::nn::Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1));
    layer2 = torch::nn::Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16, 1));
    register_module("layer1", layer1);
    register_module("layer2", layer2);
    register_module("fc", fc);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = bn1(conv1(x)).relu_();
    x = layer2->forward(layer1->forward(x));
    return fc(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }

  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Sequential layer1{nullptr}, layer2{nullptr};
  torch::nn::Linear fc;
};
TORCH_MODULE(ResNet);

/// Down and up again, with skip connections over the whole depth.
struct UNetImpl : torch::nn::Module {
  UNetImpl() {
    const std::vector<int64_t> widths{2, 6, 12};
    for (size_t i = 1; i < widths.size(); ++i) {
      downs->push_back(double_conv(widths[i - 1], widths[i]));
    }
    middle = double_conv(12, 24);
    for (size_t i = widths.size() - 1; i > 0; --i) {
      const auto width = widths[i];
      ups->push_back(torch::nn::ConvTranspose2d(
          torch::nn::ConvTranspose2dOptions(2 * width, width, 2).stride(2)));
      ups->push_back(double_conv(2 * width, width));
    }
    last = torch::nn::Conv2d(torch::nn::Conv2dOptions(6, 1, 1));
    register_module("downs", downs);
    register_module("middle", middle);
    register_module("ups", ups);
    register_module("last", last);
  }

  static torch::nn::Sequential double_conv(int64_t in, int64_t out) {
    return torch::nn::Sequential(
        conv3x3(in, out),
        torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, out)),
        torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)),
        conv3x3(out, out),
        torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
  }

  torch::Tensor forward(torch::Tensor x) {
    std::vector<torch::Tensor> skips;
    for (auto& down : *downs) {
      x = down->as<torch::nn::Sequential>()->forward(x);
      skips.push_back(x);
      x = torch::max_pool2d(x, 2);
    }
    x = middle->forward(x);
    for (size_t i = 0; i < ups->size(); i += 2) {
      x = ups[i]->as<torch::nn::ConvTranspose2d>()->forward(x);
      x = torch::cat({skips.back(), x}, 1);
      skips.pop_back();
      x = ups[i + 1]->as<torch::nn::Sequential>()->forward(x);
    }
    return last(x);
  }

  torch::nn::ModuleList downs, ups;
  torch::nn::Sequential middle{nullptr};
  torch::nn::Conv2d last{nullptr};
};
TORCH_MODULE(UNet);

/// Variational auto-encoder; the noise comes from the global generator.
struct VaeImpl : torch::nn::Module {
  VaeImpl()
      : fc1(20, 16), mean(16, 3), log_var(16, 3), fc3(3, 16), fc4(16, 20) {
    register_module("fc1", fc1);
    register_module("mean", mean);
    register_module("log_var", log_var);
    register_module("fc3", fc3);
    register_module("fc4", fc4);
  }

  /// Reconstruction error plus KL divergence.
  torch::Tensor loss(const torch::Tensor& x) {
    const auto h = torch::relu(fc1(x));
    const auto mu = mean(h);
    const auto logvar = log_var(h);
    const auto z = mu + torch::randn_like(mu) * (0.5 * logvar).exp();
    const auto y = torch::sigmoid(fc4(torch::relu(fc3(z))));
    const auto kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum();
    return (torch::binary_cross_entropy(y, x, {}, at::Reduction::Sum) + kl) /
        x.size(0);
  }

  torch::nn::Linear fc1, mean, log_var, fc3, fc4;
};
TORCH_MODULE(Vae);

/// The two networks of a GAN over vectors.
inline torch::nn::Sequential make_generator() {
  return torch::nn::Sequential(
      torch::nn::Linear(4, 24),
      torch::nn::BatchNorm1d(24),
      torch::nn::ReLU(torch::nn::ReLUOptions(true)),
      torch::nn::Linear(24, 7));
}

inline torch::nn::Sequential make_discriminator() {
  return torch::nn::Sequential(
      torch::nn::Linear(7, 32),
      torch::nn::LeakyReLU(
          torch::nn::LeakyReLUOptions().negative_slope(0.2).inplace(true)),
      torch::nn::Linear(32, 16),
      torch::nn::Tanh(),
      torch::nn::Linear(16, 1));
}

} // namespace strangers
