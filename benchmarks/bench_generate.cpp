// SPDX-License-Identifier: Apache-2.0
// One side of benchmarks/peers/generate.py: bench_generate FOLDER PROMPTS NEW
// THREADS prints the seconds of a greedy generation and its tokens.

#include "tessera/runtime/comm/init.h"
#include "tessera/zoo/generation/generate.h"
#include "tessera/zoo/generation/prompt_batch.h"
#include "tessera/zoo/models/pretrained.h"

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  namespace zoo = tessera::zoo;
  if (argc != 5) {
    std::fputs("usage: bench_generate FOLDER PROMPTS NEW THREADS\n", stderr);
    return 2;
  }
  at::set_num_threads(std::atoi(argv[4]));
  tessera::init();
  const auto model = zoo::from_pretrained(argv[1]);
  const auto prompt = zoo::prompt_batch(
      nlohmann::json::parse(argv[2]).get<std::vector<std::vector<int64_t>>>(),
      0,
      at::kCPU);
  zoo::GenerateOptions options;
  options.max_new_tokens = 4;
  zoo::generate(*model, prompt, options);
  options.max_new_tokens = std::atoi(argv[3]);
  const auto begin = std::chrono::steady_clock::now();
  const at::Tensor tokens = zoo::generate(*model, prompt, options);
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begin;
  nlohmann::json rows = nlohmann::json::array();
  for (int64_t row = 0; row < tokens.size(0); ++row) {
    const at::Tensor own = tokens[row].contiguous();
    rows.push_back(std::vector<int64_t>(
        own.const_data_ptr<int64_t>(),
        own.const_data_ptr<int64_t>() + own.numel()));
  }
  std::printf(
      "%s\n", nlohmann::json::array({seconds.count(), rows}).dump().c_str());
  return 0;
}
