// SPDX-License-Identifier: Apache-2.0
// Trains GPT-2 for some steps, plain or wrapped, and prints what a step takes
// as one line of JSON. benchmarks/peers/compare.py runs it next to its peers.
//
//   train_gpt2 mode=plain steps=10
//   tessera launch --nproc 2 -- train_gpt2 mode=tessera steps=10
//   train_gpt2 matmul=onednn update_in_backward=1 clip=0 helpers=1
//   train_gpt2 device=cuda dtype=bfloat16 layers=24 width=2048 heads=16
//   train_gpt2 lazy=1 placement.optimizer=host placement.gradients=host
//   train_gpt2 device=cuda profile=trace.json
//
// profile=FILE writes a Chrome trace of the measured steps.
//
// A key with a dot is one of the engine's, as in configs/README.md. On CUDA
// benchmarks/peers/compare_cuda.py does that. In bfloat16, tessera keeps master
// weights; plain uses autocast over float32 weights.

#include "gpt2_model.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/engine_config.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/cpu_matmul.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <sys/resource.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace tessera {

namespace {

constexpr double kLearningRate = 1e-4;
constexpr double kWeightDecay = 0.01;
constexpr double kMaxNorm = 1.0;

/// key=value arguments: those of this program, over its defaults, and the
/// engine's.
struct Arguments {
  std::map<std::string, std::string> settings;
  std::vector<std::string> engine;
};

Arguments parse(int argc, char** argv) {
  std::vector<std::string> engine;
  std::map<std::string, std::string> settings{
      {"mode", "tessera"},
      {"device", "cpu"},
      {"dtype", "float32"},
      {"layers", "12"},
      {"width", "768"},
      {"heads", "12"},
      {"batch", "2"},
      {"sequence", "256"},
      {"steps", "10"},
      {"warmup", "3"},
      {"threads", "1"},
      {"clip", "1"},
      {"helpers", "0"},
      {"update_in_backward", "0"},
      {"lazy", "0"},
      {"matmul", "libtorch"},
      {"profile", ""}};
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string key = argument.substr(0, equals);
    if (key.find('.') != std::string::npos) {
      engine.push_back(argument);
      continue;
    }
    TESSERA_CHECK(
        equals != std::string::npos && settings.count(key) == 1,
        "train_gpt2: '{}' is not key=value with a known key",
        argument);
    settings[key] = argument.substr(equals + 1);
  }
  return {std::move(settings), std::move(engine)};
}

/// How a model is trained: gradients, clipping and update of one step.
class Stepper {
 public:
  virtual ~Stepper() = default;
  virtual void step(const at::Tensor& loss, bool clip) = 0;
};

class PlainStepper : public Stepper {
 public:
  explicit PlainStepper(torch::nn::Module& module)
      : parameters_(module.parameters()) {
    for (const at::Tensor& parameter : parameters_) {
      exp_avgs_.push_back(at::zeros_like(parameter));
      exp_avg_sqs_.push_back(at::zeros_like(parameter));
      // The fused update takes float32 counters beside its parameters.
      steps_.push_back(at::zeros({}, parameter.options().dtype(at::kFloat)));
    }
  }

  void step(const at::Tensor& loss, bool clip) override {
    loss.backward();
    if (clip) {
      torch::nn::utils::clip_grad_norm_(parameters_, kMaxNorm);
    }
    const torch::NoGradGuard no_grad;
    const AdamWOptions options;
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      gradients.push_back(parameters_[i].grad());
      steps_[i] += 1;
    }
    at::_fused_adamw_(
        parameters_,
        gradients,
        exp_avgs_,
        exp_avg_sqs_,
        {},
        steps_,
        kLearningRate,
        options.beta1,
        options.beta2,
        kWeightDecay,
        options.eps,
        /*amsgrad=*/false,
        /*maximize=*/false);
    for (at::Tensor& parameter : parameters_) {
      parameter.mutable_grad().reset();
    }
  }

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> exp_avgs_;
  std::vector<at::Tensor> exp_avg_sqs_;
  std::vector<at::Tensor> steps_;
};

class TesseraStepper : public Stepper {
 public:
  /// @param from_arguments what was said of the engine.
  TesseraStepper(
      torch::nn::Module& module,
      const EngineOptions& from_arguments,
      bool bfloat16,
      bool update_in_backward)
      : engine_(wrap(
            module,
            options(from_arguments, bfloat16, update_in_backward))) {}

  void step(const at::Tensor& loss, bool clip) override {
    engine_.backward(loss);
    if (clip) {
      engine_.clip_grad_norm(kMaxNorm);
    }
    engine_.step();
  }

 private:
  static EngineOptions options(
      EngineOptions options,
      bool bfloat16,
      bool update_in_backward) {
    options.update_in_backward = update_in_backward;
    if (bfloat16) {
      options.precision.parameters = at::kBFloat16;
    }
    options.optimizer.lr = kLearningRate;
    options.optimizer.weight_decay = kWeightDecay;
    options.optimizer.rule = AdamWOptions{};
    return options;
  }

  Engine engine_;
};

/// Waits until the device has done all that was issued.
void synchronize(at::Device device) {
  if (device.is_cuda()) {
    c10::impl::getDeviceGuardImpl(device.type())
        ->synchronizeDevice(device.index());
  }
}

/// Most bytes that tensors on the device have had; 0 on the CPU.
int64_t peak_device_bytes(at::Device device) {
  if (!device.is_cuda()) {
    return 0;
  }
  return c10::getDeviceAllocator(device.type())
      ->getDeviceStats(device.index())
      .allocated_bytes[0]
      .peak;
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) +
         static_cast<double>(time.tv_usec) * 1e-6;
}

double median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/// Records operators, and on CUDA kernels, until save().
class Profile {
 public:
  explicit Profile(at::Device device) {
    namespace impl = torch::profiler::impl;
    const impl::ProfilerConfig config(impl::ProfilerState::KINETO);
    std::set<impl::ActivityType> activities{impl::ActivityType::CPU};
    if (device.is_cuda()) {
      activities.insert(impl::ActivityType::CUDA);
    }
    torch::autograd::profiler::prepareProfiler(config, activities);
    torch::autograd::profiler::enableProfiler(config, activities);
  }

  void save(const std::string& path) {
    torch::autograd::profiler::disableProfiler()->save(path);
  }
};

EngineOptions read_engine(const std::vector<std::string>& arguments) {
  const runtime::ConfigReader reader(
      nlohmann::json::object(), "train_gpt2", arguments);
  EngineOptions options = read_engine_options(reader);
  reader.finish();
  return options;
}

void run(const Arguments& arguments) {
  std::map<std::string, std::string> settings = arguments.settings;
  at::set_num_threads(std::stoi(settings["threads"]));
  if (settings["matmul"] != "libtorch") {
    const CpuMatmul in_use = set_cpu_matmul(
        settings["matmul"] == "auto" ? CpuMatmul::kAuto : CpuMatmul::kOneDnn);
    std::cerr << "matmul: " << name_of(in_use) << std::endl;
  }
  const bool plain = settings["mode"] == "plain";
  const int steps = std::stoi(settings["steps"]);
  const int warmup = std::stoi(settings["warmup"]);
  const bool clip = settings["clip"] == "1";
  const bool helpers = settings["helpers"] == "1";
  const bool bfloat16 = settings["dtype"] == "bfloat16";
  const bool cuda = settings["device"] == "cuda";
  TESSERA_CHECK(
      !cuda || runtime::load_cuda_backend().loaded,
      "train_gpt2: there is no CUDA device: {}",
      runtime::load_cuda_backend().reason);
  // Plain is LibTorch alone: without init(), which changes the CPU's allocator.
  const int rank = plain ? 0 : init().rank();
  at::Device device = at::kCPU;
  if (cuda) {
    device = plain ? at::Device(at::kCUDA, 0) : world().device();
  }
  if (plain && bfloat16) {
    at::autocast::set_autocast_enabled(device.type(), true);
    at::autocast::set_autocast_dtype(device.type(), at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(false);
  }

  torch::manual_seed(0);
  Gpt2Config config;
  config.layers = std::stoi(settings["layers"]);
  config.width = std::stoi(settings["width"]);
  config.heads = std::stoi(settings["heads"]);
  const auto build = [&config] { return Gpt2(config); };
  Gpt2 model = settings["lazy"] == "1" ? lazy(build) : build();
  move_module(*model, device);
  std::unique_ptr<Stepper> stepper;
  if (plain) {
    stepper = std::make_unique<PlainStepper>(*model);
  } else {
    stepper = std::make_unique<TesseraStepper>(
        *model,
        read_engine(arguments.engine),
        bfloat16,
        settings["update_in_backward"] == "1");
  }
  torch::manual_seed(1000 + rank);
  const at::Tensor ids =
      at::randint(
          config.vocabulary,
          {std::stoi(settings["batch"]), std::stoi(settings["sequence"])},
          at::kLong)
          .to(device);
  const auto tokens = static_cast<double>(ids.numel());
  double parameters = 0;
  for (const at::Tensor& parameter : model->parameters()) {
    parameters += static_cast<double>(parameter.numel());
  }

  std::vector<double> times;
  std::vector<double> losses;
  std::optional<Profile> profile;
  rusage before{};
  for (int i = 0; i < warmup + steps; ++i) {
    if (i == warmup) {
      ::getrusage(RUSAGE_SELF, &before);
      if (!settings["profile"].empty()) {
        profile.emplace(device);
      }
    }
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor loss =
        helpers ? model->forward_with_helpers(ids) : model->forward(ids);
    stepper->step(loss, clip);
    losses.push_back(loss.item<double>());
    synchronize(device);
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - start;
    if (i >= warmup) {
      times.push_back(taken.count());
    }
  }
  rusage after{};
  ::getrusage(RUSAGE_SELF, &after);
  if (profile) {
    profile->save(settings["profile"]);
  }
  std::ostringstream line;
  line << "{\"bench\": \"gpt2\", \"peer\": \"" << settings["mode"]
       << "\", \"rank\": " << rank << ", \"step_ms\": " << median(times) * 1e3
       << ", \"min_ms\": "
       << *std::min_element(times.begin(), times.end()) * 1e3
       << ", \"user_ms\": "
       << (seconds(after.ru_utime) - seconds(before.ru_utime)) / steps * 1e3
       << ", \"sys_ms\": "
       << (seconds(after.ru_stime) - seconds(before.ru_stime)) / steps * 1e3
       << ", \"tokens_per_s\": " << tokens / median(times)
       << ", \"parameters\": " << parameters
       << ", \"peak_device_mib\": " << peak_device_bytes(device) / (1 << 20)
       << ", \"peak_rss_mib\": " << after.ru_maxrss / 1024
       << ", \"minor_faults\": " << (after.ru_minflt - before.ru_minflt) / steps
       << ", \"first_loss\": " << losses.front()
       << ", \"last_loss\": " << losses.back() << "}\n";
  std::cout << line.str() << std::flush;
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  try {
    tessera::run(tessera::parse(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
