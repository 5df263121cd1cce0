// SPDX-License-Identifier: Apache-2.0
// Trains GPT-2, or a Llama, for some steps, plain or wrapped, and prints what a
// step takes as one line of JSON. benchmarks/peers/compare.py runs it next to
// its peers, compare_cuda.py does so on CUDA.
//
//   train_gpt2 mode=plain steps=10
//   tessera launch --nproc 2 -- train_gpt2 mode=tessera steps=10
//   train_gpt2 matmul=onednn update_in_backward=1 clip=0 helpers=1
//   train_gpt2 device=cuda dtype=bfloat16 layers=24 width=2048 heads=16
//   train_gpt2 lazy=1 placement.optimizer=host placement.gradients=host
//   train_gpt2 device=cuda profile=trace.json predict=auto
//   train_gpt2 model=llama device=cuda dtype=bfloat16 lazy=1 batch=1
//       sequence=4096 optimizer.moment_dtype=bfloat16
//       precision.gradients=bfloat16
//
// Without sizes it is GPT-2 124M or Llama 3 8B. vocabulary=50304 pads GPT-2's
// to a multiple of 64. profile=FILE writes a Chrome trace of the measured
// steps.
//
// predict=DEVICE, a name of `tessera plan --device`, says beforehand what the
// operators of this step take at least there: a table on the standard error, as
// of `tessera plan --operators`, and "predicted" beside what was measured, in
// milliseconds, if all overlap that can ("step_ms") and if nothing does
// ("step_in_turn_ms"), and by operator of the device. "auto" is the device that
// it runs on; nothing is predicted if its rates are not known.
//
// "mfu" is the share of peak_tflops, by default what the device's data sheet
// says; "of_matrix_rate" that of the rate of products of matrix=8192 rows, in
// the training's dtype, measured in the same process ("matrix_tflops"; on the
// CPU only if asked for). "mfu_formula" says what is counted.
//
// A key with a dot is one of the engine's, as in configs/README.md. In
// bfloat16, tessera keeps master weights; plain uses autocast over float32
// weights.

#include "tessera/engine/engine.h"
#include "tessera/engine/engine_config.h"
#include "tessera/planner/operator_times.h"
#include "tessera/planner/step_plan.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/core/cuda_backend.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/kernels/cpu_matmul.h"
#include "tessera/runtime/kernels/fast_operators.h"
#include "tessera/runtime/profile/device_peak.h"
#include "tessera/sharding/lazy/lazy.h"
#include "tessera/sharding/lazy/move_module.h"
#include "trained_model.h"

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/mm.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <sys/resource.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

namespace {

constexpr double kLearningRate = 1e-4;
constexpr double kWeightDecay = 0.01;
constexpr double kMaxNorm = 1.0;

enum class Kind { kGpt2, kLlama };

/// What the command line says.
struct Arguments {
  bool is_plain = false;
  Kind kind = Kind::kGpt2;
  ModelSize size;
  bool is_cuda = false;
  at::ScalarType dtype = at::kFloat;
  int64_t batch = 2;
  int64_t steps = 10;
  int64_t warmup = 3;
  int threads = 1;
  bool clips = true;
  bool helpers = false;
  bool update_in_backward = false;
  bool is_lazy = false;
  bool uses_fast_operators = true;
  CpuMatmul matmul = CpuMatmul::kLibTorch;
  std::string profile;
  std::string predict; ///< a device; empty: nothing
  double peak_tflops = 0;
  int64_t matrix_rows = 0;
  EngineOptions engine;
};

/// Some defaults depend on the fields before.
void visit(runtime::OptionFields& fields, Arguments& all) {
  const auto size = [&](const char* key, int64_t& value, int64_t usual) {
    value = usual;
    fields.field(key, value, {.min = 1}, "");
  };
  const auto flag = [&](const char* key, bool& value) {
    int64_t number = value ? 1 : 0;
    fields.field(key, number, {0, 1}, "");
    value = number == 1;
  };
  fields.choice(
      "mode", all.is_plain, {{"tessera", false}, {"plain", true}}, "");
  fields.choice(
      "model", all.kind, {{"gpt2", Kind::kGpt2}, {"llama", Kind::kLlama}}, "");
  const bool is_llama = all.kind == Kind::kLlama;
  fields.choice("device", all.is_cuda, {{"cpu", false}, {"cuda", true}}, "");
  fields.choice(
      "dtype",
      all.dtype,
      {{"float32", at::kFloat}, {"bfloat16", at::kBFloat16}},
      "");
  size("layers", all.size.layers, is_llama ? 32 : 12);
  size("width", all.size.width, is_llama ? 4096 : 768);
  size("heads", all.size.heads, is_llama ? 32 : 12);
  size("vocabulary", all.size.vocabulary, is_llama ? 128256 : 50257);
  // A loss needs a token to predict.
  all.size.sequence = 256;
  fields.field("sequence", all.size.sequence, {.min = 2}, "");
  if (is_llama) {
    size("key_value_heads", all.size.key_value_heads, 8);
    size("intermediate", all.size.intermediate, 14336);
  }
  fields.field("batch", all.batch, {.min = 1}, "");
  fields.field("steps", all.steps, {.min = 1}, "");
  fields.field("warmup", all.warmup, {.min = 0}, "");
  fields.field("threads", all.threads, {.min = 1, .max = 4096}, "");
  flag("clip", all.clips);
  flag("helpers", all.helpers);
  flag("update_in_backward", all.update_in_backward);
  flag("lazy", all.is_lazy);
  flag("fused", all.uses_fast_operators);
  fields.choice(
      "matmul",
      all.matmul,
      {{"libtorch", CpuMatmul::kLibTorch},
       {"auto", CpuMatmul::kAuto},
       {"onednn", CpuMatmul::kOneDnn},
       {"bfloat16", CpuMatmul::kBfloat16}},
      "");
  fields.field("profile", all.profile, "");
  fields.field("predict", all.predict, "");
  fields.field("peak_tflops", all.peak_tflops, {.min = 0}, "");
  all.matrix_rows = all.is_cuda ? 8192 : 0;
  fields.field("matrix", all.matrix_rows, {.min = 0}, "");
}

/// @throws tessera::Error naming the key, on unknown keys and on values that
/// are
///   not possible.
Arguments parse(const std::vector<std::string>& words) {
  std::vector<std::string> own;
  std::vector<std::string> engine;
  for (const std::string& word : words) {
    const bool is_engines = word.find('.') < word.find('=');
    (is_engines ? engine : own).push_back(word);
  }
  const auto reader_of = [](const std::vector<std::string>& settings) {
    return runtime::ConfigReader(
        nlohmann::json::object(), "train_gpt2", settings);
  };
  const runtime::ConfigReader reader = reader_of(own);
  Arguments all;
  reader.read([&](runtime::OptionFields& fields) { visit(fields, all); });
  TESSERA_CHECK(
      all.size.width % all.size.heads == 0,
      "train_gpt2: width={} is not a multiple of heads={}",
      all.size.width,
      all.size.heads);
  reader.finish();
  if (all.is_plain) {
    std::string of_engine = engine.empty() ? "" : engine.front();
    of_engine = all.update_in_backward ? "update_in_backward" : of_engine;
    of_engine = all.predict.empty() ? of_engine : "predict";
    TESSERA_CHECK(
        of_engine.empty(),
        "train_gpt2: {} is for the engine, which mode=plain does not have; use "
        "mode=tessera",
        of_engine);
  }
  const runtime::ConfigReader engine_reader = reader_of(engine);
  all.engine = read_engine_options(engine_reader);
  engine_reader.finish();
  return all;
}

EngineOptions engine_options(const Arguments& arguments) {
  EngineOptions options = arguments.engine;
  options.update_in_backward = arguments.update_in_backward;
  if (arguments.dtype == at::kBFloat16) {
    options.precision.parameters = at::kBFloat16;
  }
  options.optimizer.lr = kLearningRate;
  options.optimizer.weight_decay = kWeightDecay;
  options.optimizer.rule = AdamWOptions{};
  return options;
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
  TesseraStepper(torch::nn::Module& module, const Arguments& arguments)
      : engine_(wrap(module, engine_options(arguments))) {}

  void step(const at::Tensor& loss, bool clip) override {
    engine_.backward(loss);
    if (clip) {
      engine_.clip_grad_norm(kMaxNorm);
    }
    engine_.step();
  }

 private:
  Engine engine_;
};

/// Waits until the device has done all that was issued.
void synchronize(at::Device device) {
  if (device.is_cuda()) {
    c10::impl::getDeviceGuardImpl(device.type())
        ->synchronizeDevice(device.index());
  }
}

/// Most MiB that tensors on the device have had, and that were taken from the
/// device for them; 0 on the CPU.
std::array<int64_t, 2> peak_device_mib(at::Device device) {
  if (!device.is_cuda()) {
    return {0, 0};
  }
  const auto stats =
      c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return {
      stats.allocated_bytes[0].peak / (1 << 20),
      stats.reserved_bytes[0].peak / (1 << 20)};
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

/// Operations per second of products of random matrices of `rows` x `rows`,
/// sustained; 0 for 0 rows. The memory is given back.
double matrix_rate(at::Device device, at::ScalarType dtype, int64_t rows) {
  if (rows == 0) {
    return 0;
  }
  constexpr double kLeastSeconds = 0.3;
  constexpr int kProducts = 10; // between two looks at the clock
  const torch::NoGradGuard no_grad;
  double rate = 0;
  {
    const auto options = at::device(device).dtype(dtype);
    const at::Tensor a = at::randn({rows, rows}, options);
    const at::Tensor b = at::randn({rows, rows}, options);
    at::Tensor product = at::mm(a, b); // the library's first call
    synchronize(device);
    const auto start = std::chrono::steady_clock::now();
    double taken = 0;
    int64_t products = 0;
    while (taken < kLeastSeconds) {
      for (int i = 0; i < kProducts; ++i) {
        at::mm_out(product, a, b);
      }
      synchronize(device);
      products += kProducts;
      taken = std::chrono::duration<double>(
                  std::chrono::steady_clock::now() - start)
                  .count();
    }
    rate = 2.0 * std::pow(static_cast<double>(rows), 3) *
           static_cast<double>(products) / taken;
  }
  if (device.is_cuda()) {
    c10::getDeviceAllocator(device.type())->emptyCache();
  }
  return rate;
}

/// What the driver calls it; empty on the CPU.
std::string driver_name(at::Device device) {
  if (!device.is_cuda()) {
    return "";
  }
  const auto& names = runtime::load_cuda_backend().device_names;
  const auto index = static_cast<size_t>(std::max<int>(device.index(), 0));
  return index < names.size() ? names[index] : "";
}

/// Operations per second of the peak that "mfu" is a share of; nothing where
/// the device's data sheet is not known.
std::optional<double> peak_rate(const Arguments& arguments, at::Device device) {
  if (arguments.peak_tflops > 0) {
    return arguments.peak_tflops * 1e12;
  }
  return runtime::known_peak_flops(
      driver_name(device), arguments.dtype, /*uses_tf32=*/false);
}

TrainedModel make_model(const Arguments& arguments, bool is_lazy) {
  const auto make = arguments.kind == Kind::kLlama ? make_llama : make_gpt2;
  return make(arguments.size, is_lazy, arguments.helpers);
}

/// @return random tokens, on the CPU.
at::Tensor make_batch(const Arguments& arguments) {
  return at::randint(
      arguments.size.vocabulary,
      {arguments.batch, arguments.size.sequence},
      at::kLong);
}

/// What a step of this rank takes at least, on the device of predict=, by a dry
/// run; nothing if none is asked for, or the rates of its own are not known.
std::optional<planner::StepPrediction> predict(
    const Arguments& arguments,
    at::Device device) {
  std::string name = arguments.predict;
  if (name == "auto") {
    name = device.is_cuda()
               ? planner::rates_name(driver_name(device)).value_or("")
               : "cpu";
    if (name.empty()) {
      std::cerr << "train_gpt2: nothing is predicted, for the rates of '"
                << driver_name(device) << "' are not known" << std::endl;
    }
  }
  if (name.empty()) {
    return std::nullopt;
  }
  const planner::DeviceRates rates =
      planner::known_rates(name, planner::RateUse::kKernels);
  PlannedJob job;
  job.rank = world().rank();
  job.world_size = world().size();
  job.device = name == "cpu" ? c10::kCPU : c10::kCUDA;
  job.clips_gradients = arguments.clips;
  const at::Tensor ids = make_batch(arguments);
  TrainedModel model;
  PlannedTraining training;
  training.make = [&](World& /*world*/, ParallelRun& /*parallel*/) {
    model = make_model(arguments, /*is_lazy=*/true);
    return model.module;
  };
  training.loss = [&](torch::nn::Module& /*module*/) {
    return model.loss(ids);
  };
  EngineOptions options = engine_options(arguments);
  options.log_memory = false;
  const planner::StepPrediction prediction =
      planner::predict_step(plan(training, options, job), name, rates);
  std::cerr << planner::prediction_table(prediction) << std::flush;
  return prediction;
}

nlohmann::ordered_json json_of(const planner::StepPrediction& prediction) {
  nlohmann::ordered_json json{
      {"device", prediction.device},
      {"step_ms", prediction.seconds() * 1e3},
      {"step_in_turn_ms", prediction.seconds_in_turn() * 1e3}};
  for (const auto& [key, seconds] :
       {std::pair("device_ms", prediction.device_s),
        std::pair("links_ms", prediction.links_s),
        std::pair("to_host_ms", prediction.to_host_s),
        std::pair("to_device_ms", prediction.to_device_s),
        std::pair("host_ms", prediction.host_s)}) {
    if (seconds > 0) {
      json[key] = seconds * 1e3;
    }
  }
  std::map<std::string, double> operators; // forward and backward
  for (const planner::OperatorTime& row : prediction.operators) {
    if (row.bound == planner::OperatorBound::kProducts ||
        row.bound == planner::OperatorBound::kMemory) {
      operators[row.name] += row.seconds * 1e3;
    }
  }
  json["operators_ms"] = operators;
  return json;
}

/// What the measured steps took.
struct Measured {
  std::vector<double> seconds; ///< of each
  std::vector<double> losses; ///< of the steps before, too
  rusage before{};
  rusage after{};
};

Measured train(
    const Arguments& arguments,
    const TrainedModel& model,
    Stepper& stepper,
    const at::Tensor& ids) {
  Measured measured;
  std::optional<Profile> profile;
  for (int64_t i = 0; i < arguments.warmup + arguments.steps; ++i) {
    if (i == arguments.warmup) {
      ::getrusage(RUSAGE_SELF, &measured.before);
      if (!arguments.profile.empty()) {
        profile.emplace(ids.device());
      }
    }
    const auto start = std::chrono::steady_clock::now();
    const at::Tensor loss = model.loss(ids);
    stepper.step(loss, arguments.clips);
    measured.losses.push_back(loss.item<double>());
    synchronize(ids.device());
    const std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - start;
    if (i >= arguments.warmup) {
      measured.seconds.push_back(taken.count());
    }
  }
  ::getrusage(RUSAGE_SELF, &measured.after);
  if (profile) {
    profile->save(arguments.profile);
  }
  return measured;
}

void run(const Arguments& arguments) {
  at::set_num_threads(arguments.threads);
  if (arguments.matmul != CpuMatmul::kLibTorch) {
    std::cerr << "matmul: " << name_of(set_cpu_matmul(arguments.matmul))
              << std::endl;
  }
  TESSERA_CHECK(
      !arguments.is_cuda || runtime::load_cuda_backend().loaded,
      "train_gpt2: there is no CUDA device: {}",
      runtime::load_cuda_backend().reason);
  // Plain is LibTorch alone: without init(), which changes the CPU's allocator.
  const int rank = arguments.is_plain ? 0 : init().rank();
  at::Device device = at::kCPU;
  if (arguments.is_cuda) {
    device = arguments.is_plain ? at::Device(at::kCUDA, 0) : world().device();
  }
  if (!arguments.is_plain && !device.is_cpu()) {
    runtime::use_fast_operators(arguments.uses_fast_operators, device.type());
  }
  const std::optional<planner::StepPrediction> prediction =
      predict(arguments, device);
  const double matrix_flops =
      matrix_rate(device, arguments.dtype, arguments.matrix_rows);
  if (arguments.is_plain && arguments.dtype == at::kBFloat16) {
    at::autocast::set_autocast_enabled(device.type(), true);
    at::autocast::set_autocast_dtype(device.type(), at::kBFloat16);
    at::autocast::set_autocast_cache_enabled(false);
  }

  torch::manual_seed(0);
  const TrainedModel model = make_model(arguments, arguments.is_lazy);
  move_module(*model.module, device);
  std::unique_ptr<Stepper> stepper;
  if (arguments.is_plain) {
    materialize(*model.module);
    stepper = std::make_unique<PlainStepper>(*model.module);
  } else {
    stepper = std::make_unique<TesseraStepper>(*model.module, arguments);
  }
  torch::manual_seed(1000 + rank);
  const at::Tensor ids = make_batch(arguments).to(device);

  const Measured measured = train(arguments, model, *stepper, ids);
  const auto steps = static_cast<double>(arguments.steps);
  const double step_s = median(measured.seconds);
  const double tokens_per_s = static_cast<double>(ids.numel()) / step_s;
  const double operations_per_token =
      model.operations_per_token(arguments.size);
  const double flops = tokens_per_s * operations_per_token;
  const auto peak_mib = peak_device_mib(device);
  nlohmann::ordered_json line{
      {"bench", arguments.kind == Kind::kLlama ? "llama" : "gpt2"},
      {"peer", arguments.is_plain ? "plain" : "tessera"},
      {"rank", rank},
      {"step_ms", step_s * 1e3},
      {"min_ms",
       *std::min_element(measured.seconds.begin(), measured.seconds.end()) *
           1e3},
      {"user_ms",
       (seconds(measured.after.ru_utime) - seconds(measured.before.ru_utime)) /
           steps * 1e3},
      {"sys_ms",
       (seconds(measured.after.ru_stime) - seconds(measured.before.ru_stime)) /
           steps * 1e3},
      {"tokens_per_s", tokens_per_s},
      {"tflops", flops / 1e12},
      {"parameters", model.parameters},
      {"operations_per_token", operations_per_token},
      {"peak_device_mib", peak_mib[0]},
      {"peak_reserved_mib", peak_mib[1]},
      {"peak_rss_mib", measured.after.ru_maxrss / 1024},
      {"minor_faults",
       (measured.after.ru_minflt - measured.before.ru_minflt) /
           arguments.steps},
      {"first_loss", measured.losses.front()},
      {"last_loss", measured.losses.back()},
      {"losses", measured.losses}};
  if (matrix_flops > 0) {
    line["matrix_tflops"] = matrix_flops / 1e12;
    line["of_matrix_rate"] = flops / matrix_flops;
  }
  if (const auto peak = peak_rate(arguments, device)) {
    line["peak_tflops"] = *peak / 1e12;
    line["mfu"] = flops / *peak;
    line["mfu_formula"] = kMfuFormula;
  }
  if (prediction) {
    line["predicted"] = json_of(*prediction);
  }
  std::cout << line.dump() + "\n" << std::flush;
}

} // namespace

} // namespace tessera

int main(int argc, char** argv) {
  try {
    tessera::run(tessera::parse({argv + 1, argv + argc}));
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
