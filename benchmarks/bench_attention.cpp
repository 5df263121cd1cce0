// SPDX-License-Identifier: Apache-2.0
// Attention by a pattern on the CPU, forward and backward: pattern_attention()
// beside LibTorch's fused kernel, which takes a mask of the same pairs, or none
// where it needs none.
//
//   bench_attention [length=2048] [heads=12] [key_heads=12] [features=64]
//                   [document=128] [window=256] [dropout=0]
//                   [rounds=9]
//
// Both take turns, on one thread; times are the processor's, medians.

#include "tessera/runtime/kernels/pattern_attention.h"
#include "tessera/runtime/memory/cpu_allocator.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

namespace {

struct AttentionSizes {
  int64_t length = 2048;
  int64_t heads = 12;
  int64_t key_heads = 12;
  int64_t features = 64;
  int64_t document = 128;
  int64_t window = 256;
  int64_t dropout = 0; ///< in percent
  int64_t rounds = 9;
};

/// Milliseconds of forward and backward.
double attention_time(
    const AttentionSizes& sizes,
    const runtime::AttentionPattern& pattern,
    at::ScalarType dtype,
    bool by_pattern,
    bool has_mask,
    bool causal) {
  const auto matrix = [&](int64_t heads) {
    return torch::randn({1, sizes.length, heads, sizes.features})
        .to(dtype)
        .transpose(1, 2)
        .requires_grad_();
  };
  const at::Tensor query = matrix(sizes.heads);
  const at::Tensor key = matrix(sizes.key_heads);
  const at::Tensor value = matrix(sizes.key_heads);
  const at::Tensor gradient = torch::randn_like(query);
  const std::optional<at::Tensor> mask =
      has_mask && !by_pattern ? std::optional<at::Tensor>(pattern.dense())
                              : std::nullopt;
  const double dropout = static_cast<double>(sizes.dropout) / 100;
  const double scale = 1 / std::sqrt(static_cast<double>(sizes.features));
  const std::clock_t begin = std::clock();
  const at::Tensor out =
      by_pattern ? runtime::pattern_attention(
                       query, key, value, pattern, scale, {dropout})
                 : at::scaled_dot_product_attention(
                       query, key, value, mask, dropout, causal, scale, true);
  out.backward(gradient);
  return 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

double median_time(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare_attention(const AttentionSizes& sizes) {
  at::set_num_threads(1);
  runtime::keep_freed_cpu_memory(true); // as in training
  const auto causal =
      runtime::AttentionPattern::causal(sizes.length, sizes.length, at::kCPU);
  const at::Tensor ids =
      at::arange(sizes.length).unsqueeze(0).div(sizes.document, "floor");
  const struct {
    const char* name;
    runtime::AttentionPattern pattern;
    bool has_mask;
    bool causal;
  } cases[] = {
      {"documents", causal.within_documents(ids), true, false},
      {"window", causal.within_window(sizes.window), true, false},
      {"causal", causal, false, true},
      {"full",
       runtime::AttentionPattern::full(sizes.length, sizes.length, at::kCPU),
       false,
       false}};
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [name, pattern, has_mask, is_causal] : cases) {
      std::vector<double> by_mask;
      std::vector<double> by_pattern;
      for (int64_t round = -1; round < sizes.rounds; ++round) {
        const double plain =
            attention_time(sizes, pattern, dtype, false, has_mask, is_causal);
        const double own =
            attention_time(sizes, pattern, dtype, true, has_mask, is_causal);
        if (round >= 0) { // the first one touches the memory
          by_mask.push_back(plain);
          by_pattern.push_back(own);
        }
      }
      std::printf(
          "%-10s %-9s LibTorch %7.2f ms, pattern %7.2f ms, ratio %.3f\n",
          name,
          dtype == at::kFloat ? "float32" : "bfloat16",
          median_time(by_mask),
          median_time(by_pattern),
          median_time(by_pattern) / median_time(by_mask));
    }
  }
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  tessera::AttentionSizes sizes;
  const std::map<std::string, int64_t*> fields = {
      {"length", &sizes.length},
      {"heads", &sizes.heads},
      {"key_heads", &sizes.key_heads},
      {"features", &sizes.features},
      {"document", &sizes.document},
      {"window", &sizes.window},
      {"dropout", &sizes.dropout},
      {"rounds", &sizes.rounds}};
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t end = text.find('=');
    const auto field = fields.find(text.substr(0, end));
    if (end == std::string::npos || field == fields.end()) {
      std::fprintf(stderr, "bench_attention: %s is not SIZE=NUMBER\n", argv[i]);
      return 1;
    }
    *field->second = std::atoll(text.c_str() + end + 1);
  }
  tessera::compare_attention(sizes);
}
