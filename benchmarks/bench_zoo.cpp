// SPDX-License-Identifier: Apache-2.0
// Times a model of the zoo: forward with its loss, and forward with backward.
// benchmarks/peers/compare_zoo.py runs it next to transformers.
//
//   bench_zoo MODEL_FOLDER BATCH SEQUENCE REPEATS
//       [loss-only] [auto-matmul] [keep-memory] [fused-off-too] [train]
//       [documents=N]
//
// Prints one line of JSON: the times of each repeat in milliseconds; with
// fused-off-too also those of repeats in between by LibTorch's operators. With
// train, the model is in training mode: it drops. With documents, each sequence
// is packed from documents of N tokens.

#include "tessera/runtime/kernels/cpu_matmul.h"
#include "tessera/runtime/kernels/fused_operators.h"
#include "tessera/runtime/memory/cpu_allocator.h"
#include "tessera/zoo/models/pretrained.h"

#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <cstdlib>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

namespace tessera {

namespace {

/// Of the processor: with one thread that is the time on an idle machine.
template <typename Work>
double milliseconds(const Work& work) {
  const std::clock_t begin = std::clock();
  work();
  return 1000.0 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

int run(
    const std::string& folder,
    int batch,
    int length,
    int repeats,
    bool loss_only,
    bool compares,
    bool trains,
    int64_t document) {
  at::set_num_threads(1);
  const auto model = zoo::from_pretrained(folder);
  model->train(trains || model->is_training());
  torch::manual_seed(1);
  zoo::ModelInput input;
  input.input_ids = torch::randint(0, 1000, {batch, length}, torch::kInt64);
  input.labels = input.input_ids;
  input.loss_only = loss_only;
  if (document > 0) {
    const at::Tensor places =
        torch::arange(length, torch::kInt64).repeat({batch, 1});
    input.position_ids = places.remainder(document);
    input.others["document_ids"] = places.div(document, "floor");
  }
  nlohmann::json times;
  for (int i = 0; i <= repeats * (compares ? 2 : 1) + (compares ? 1 : 0); ++i) {
    const bool fused = !compares || i % 2 == 0;
    runtime::use_fused_operators(fused);
    const double without = milliseconds([&] {
      const torch::NoGradGuard no_grad;
      model->forward(input);
    });
    const double with =
        milliseconds([&] { model->forward(input).loss.backward(); });
    model->zero_grad();
    if (i > (compares ? 1 : 0)) { // The first one touches the memory.
      const std::string suffix = fused ? "" : "_off";
      times["forward" + suffix].push_back(without);
      times["both" + suffix].push_back(with);
    }
  }
  std::cout << times << '\n';
  return 0;
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  bool loss_only = false;
  bool compares = false;
  bool trains = false;
  int64_t document = 0;
  bool is_wrong = argc < 5;
  for (int i = 5; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "loss-only") {
      loss_only = true;
    } else if (option == "auto-matmul") {
      tessera::set_cpu_matmul(tessera::CpuMatmul::kAuto);
    } else if (option == "keep-memory") {
      tessera::runtime::keep_freed_cpu_memory(true);
    } else if (option == "fused-off-too") {
      compares = true;
    } else if (option == "train") {
      trains = true;
    } else if (option.rfind("documents=", 0) == 0) {
      document = std::atoll(option.c_str() + option.find('=') + 1);
      is_wrong = is_wrong || document < 1;
    } else {
      is_wrong = true;
    }
  }
  if (is_wrong) {
    std::cerr
        << "usage: bench_zoo MODEL_FOLDER BATCH SEQUENCE REPEATS "
           "[loss-only] [auto-matmul] [keep-memory] [fused-off-too] [train] "
           "[documents=N]\n";
    return 2;
  }
  return tessera::run(
      argv[1],
      std::atoi(argv[2]),
      std::atoi(argv[3]),
      std::atoi(argv[4]),
      loss_only,
      compares,
      trains,
      document);
}
