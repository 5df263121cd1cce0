// SPDX-License-Identifier: Apache-2.0
// Forward and backward of a language model's head with its loss on the CPU:
// linear_cross_entropy() beside LibTorch's linear and cross_entropy.
//
//   bench_linear_loss [rows=1024] [classes=50257] [width=768] [rounds=5]
//       [threads=N]
//
// Contenders run in turns, each in a process of its own, once to warm up and
// then three times: LibTorch; LibTorch with the memory and the matrix products
// of tessera::init_on(); linear_cross_entropy() with fused=off and with auto.
// With one thread the time is the processor's, so that other programs matter
// little. Prints the median time, the peak of LibTorch's memory above that of
// the operands, and ratios to the first, of the same round.

#include "tessera/engine/device_config.h"
#include "tessera/engine/helpers/linear_cross_entropy.h"
#include "tessera/runtime/profile/cpu_memory_counter.h"

#include <ATen/Parallel.h>
#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <string>
#include <vector>

namespace tessera {

namespace {

enum class LossContender { kLibTorch, kLibTorchInit, kOff, kAuto };

constexpr const char* kContenderNames[] = {
    "LibTorch",
    "LibTorch after init",
    "fused=off",
    "fused=auto"};

struct LossSample {
  double seconds = 0;
  double peak_bytes = 0;
};

struct LossSizes {
  int64_t rows = 1024;
  int64_t classes = 50'257;
  int64_t width = 768;
  int64_t rounds = 5;
  int64_t threads = 0; ///< 0: those of LibTorch
};

/// Of the processor with one thread.
double seconds_now(const LossSizes& sizes) {
  if (sizes.threads == 1) {
    return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  }
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

LossSample measure(LossContender contender, const LossSizes& sizes) {
  runtime::install_cpu_memory_counter();
  if (contender != LossContender::kLibTorch) {
    engine::DeviceOptions options{.device = engine::DeviceChoice::kCpu};
    options.fused = contender == LossContender::kOff
                        ? engine::FusedOperators::kOff
                        : engine::FusedOperators::kAuto;
    engine::init_on(options);
  }
  if (sizes.threads > 0) {
    at::set_num_threads(static_cast<int>(sizes.threads));
  }
  torch::manual_seed(1);
  const at::Tensor hidden =
      torch::randn({sizes.rows, sizes.width}).requires_grad_();
  const at::Tensor weight =
      (torch::randn({sizes.classes, sizes.width}) * 0.02).requires_grad_();
  const at::Tensor targets = torch::randint(sizes.classes, {sizes.rows});
  const bool is_plain = contender == LossContender::kLibTorch ||
                        contender == LossContender::kLibTorchInit;
  std::vector<double> seconds;
  LossSample sample;
  for (int run = 0; run < 4; ++run) {
    hidden.mutable_grad() = at::Tensor();
    weight.mutable_grad() = at::Tensor();
    runtime::reset_cpu_bytes_peak();
    const auto before = static_cast<double>(runtime::cpu_bytes_live());
    const double start = seconds_now(sizes);
    const at::Tensor loss =
        is_plain
            ? torch::cross_entropy_loss(torch::linear(hidden, weight), targets)
            : linear_cross_entropy(hidden, weight, targets);
    loss.backward();
    if (run > 0) {
      seconds.push_back(seconds_now(sizes) - start);
    }
    sample.peak_bytes = static_cast<double>(runtime::cpu_bytes_peak()) - before;
  }
  std::sort(seconds.begin(), seconds.end());
  sample.seconds = seconds[seconds.size() / 2];
  return sample;
}

/// In a process of its own.
LossSample sample_of(LossContender contender, const LossSizes& sizes) {
  int ends[2];
  if (::pipe(ends) != 0) {
    std::perror("pipe");
    std::exit(1);
  }
  const pid_t child = ::fork();
  if (child == 0) {
    const LossSample sample = measure(contender, sizes);
    const bool sent =
        ::write(ends[1], &sample, sizeof(sample)) == sizeof(sample);
    ::_exit(sent ? 0 : 1);
  }
  ::close(ends[1]);
  LossSample sample;
  const bool came = ::read(ends[0], &sample, sizeof(sample)) == sizeof(sample);
  ::close(ends[0]);
  ::waitpid(child, nullptr, 0);
  if (!came) {
    std::fprintf(stderr, "bench_linear_loss: a contender has failed\n");
    std::exit(1);
  }
  return sample;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void compare(const LossSizes& sizes) {
  constexpr size_t kContenders = std::size(kContenderNames);
  std::vector<double> seconds[kContenders];
  std::vector<double> ratios[kContenders];
  double peaks[kContenders] = {};
  for (int64_t round = 0; round < sizes.rounds; ++round) {
    for (size_t i = 0; i < kContenders; ++i) {
      const LossSample sample = sample_of(static_cast<LossContender>(i), sizes);
      seconds[i].push_back(sample.seconds);
      ratios[i].push_back(sample.seconds / seconds[0].back());
      peaks[i] = sample.peak_bytes;
    }
  }
  for (size_t i = 0; i < kContenders; ++i) {
    std::printf(
        "%-20s %8.1f ms, ratio %.2f (%.2f - %.2f); %7.1f MiB, ratio %.2f\n",
        kContenderNames[i],
        1e3 * median(seconds[i]),
        median(ratios[i]),
        *std::min_element(ratios[i].begin(), ratios[i].end()),
        *std::max_element(ratios[i].begin(), ratios[i].end()),
        peaks[i] / (1 << 20),
        peaks[i] / peaks[0]);
  }
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  tessera::LossSizes sizes;
  const std::map<std::string, int64_t*> fields = {
      {"rows", &sizes.rows},
      {"classes", &sizes.classes},
      {"width", &sizes.width},
      {"rounds", &sizes.rounds},
      {"threads", &sizes.threads}};
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    const size_t end = text.find('=');
    const auto field = fields.find(text.substr(0, end));
    if (end == std::string::npos || field == fields.end()) {
      std::fprintf(
          stderr, "bench_linear_loss: %s is not SIZE=NUMBER\n", argv[i]);
      return 1;
    }
    *field->second = std::atoll(text.c_str() + end + 1);
  }
  tessera::compare(sizes);
}
