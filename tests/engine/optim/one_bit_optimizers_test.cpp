// SPDX-License-Identifier: Apache-2.0
// 1-bit Adam, 0/1 Adam and 1-bit LAMB: against the papers' algorithms in
// float64, against AdamW, the bytes that are sent, and checkpoints.
#include "engine/twin.h"
#include "support/ranks.h"
#include "support/temporary_folder.h"
#include "tessera/planner/step_plan.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace tessera::one_bit_optimizers_test {

namespace {

using tests::run_ranks;

/// The last step with averaged gradients, for the comparison with the papers.
constexpr int kFreeze = 4;

/// Parameters whose gradients are given: the loss is their product with
/// `gradient`, [numel] in the order of registration.
struct GivenGradientsImpl : torch::nn::Module {
  GivenGradientsImpl() {
    torch::manual_seed(3);
    matrix = register_parameter("matrix", torch::randn({90, 50}));
    vector = register_parameter("vector", torch::randn({37}));
  }
  static constexpr int64_t kNumel = 90 * 50 + 37;

  at::Tensor forward(const at::Tensor& gradient) {
    return (matrix.reshape({-1}) * gradient.narrow(0, 0, matrix.numel()))
               .sum() +
           (vector * gradient.narrow(0, matrix.numel(), vector.numel())).sum();
  }
  at::Tensor matrix;
  at::Tensor vector;
};
TORCH_MODULE(GivenGradients);

/// Of a rank in a step: signal and noise, of very different size, and some
/// elements never have any.
at::Tensor gradient_of(int step, int rank) {
  torch::manual_seed(17);
  const at::Tensor size =
      torch::exp(torch::randn({GivenGradientsImpl::kNumel}) / 2);
  const at::Tensor mean = torch::randn({GivenGradientsImpl::kNumel});
  torch::manual_seed(100 * (step + 1) + rank);
  const at::Tensor gradient =
      size * (mean + torch::randn({GivenGradientsImpl::kNumel}));
  gradient.narrow(0, 500, 300).zero_();
  return gradient;
}

EngineOptions options_of(UpdateRule rule) {
  EngineOptions options;
  options.sharding.shard_ranks = 1;
  options.optimizer.lr = 1e-2;
  options.optimizer.weight_decay = 0.1;
  options.optimizer.rule = std::move(rule);
  options.log_memory = false;
  return options;
}

/// The exchange of both papers in float64: Algorithm 1 of arXiv:2102.02888,
/// with a scale per block of 2048 elements of each rank's part.
class ReferenceAverage {
 public:
  ReferenceAverage(int64_t numel, int ranks)
      : numel_(numel),
        part_(((numel + ranks - 1) / ranks + 127) / 128 * 128),
        worker_(torch::zeros({ranks, ranks * part_}, at::kDouble)),
        server_(torch::zeros({ranks * part_}, at::kDouble)) {}

  /// @param values [ranks, numel]. @param used [numel] bool.
  at::Tensor operator()(const at::Tensor& values, const at::Tensor& used) {
    const at::Tensor mask = torch::zeros_like(server_);
    mask.narrow(0, 0, numel_).copy_(used);
    at::Tensor sum = torch::zeros_like(server_);
    for (int64_t r = 0; r < worker_.size(0); ++r) {
      const at::Tensor sent = worker_[r].clone();
      sent.narrow(0, 0, numel_).add_(values[r]);
      sent.mul_(mask);
      const at::Tensor signs = compressed(sent);
      worker_[r].copy_((sent - signs) * mask);
      sum += signs / worker_.size(0);
    }
    const at::Tensor sent = (sum + server_) * mask;
    const at::Tensor signs = compressed(sent);
    server_.copy_((sent - signs) * mask);
    return (signs * mask).narrow(0, 0, numel_);
  }

 private:
  at::Tensor compressed(const at::Tensor& values) const {
    const at::Tensor result = torch::zeros_like(values);
    for (int64_t part = 0; part < values.numel(); part += part_) {
      for (int64_t first = 0; first < part_; first += 2048) {
        const int64_t count = std::min<int64_t>(2048, part_ - first);
        const at::Tensor block = values.narrow(0, part + first, count);
        const double nonzero = block.ne(0).sum().item<double>();
        if (nonzero > 0) {
          const double scale = block.abs().sum().item<double>() / nonzero;
          result.narrow(0, part + first, count)
              .copy_(torch::where(block < 0, -scale, scale));
        }
      }
    }
    return result;
  }

  int64_t numel_;
  int64_t part_;
  at::Tensor worker_;
  at::Tensor server_;
};

/// What a step does: averages gradients, and updates the second moment.
struct ReferenceStep {
  bool averages = false;
  double second_correction = 1;
};
using ReferencePolicy = std::function<ReferenceStep(int step)>;

class Reference {
 public:
  Reference(at::Tensor weights, int ranks, ReferencePolicy policy)
      : weights_(weights.to(at::kDouble)),
        ranks_(ranks),
        average_(weights.numel(), ranks),
        policy_(std::move(policy)),
        first_(torch::zeros_like(weights_)),
        second_(torch::zeros_like(weights_)) {}

  /// @param step from 1.
  void step(int step) {
    const ReferenceStep reference_step = policy_(step);
    std::vector<at::Tensor> gradients;
    for (int r = 0; r < ranks_; ++r) {
      gradients.push_back(gradient_of(step, r).to(at::kDouble));
    }
    const at::Tensor all = torch::stack(gradients);
    const at::Tensor used = second_.ne(0);
    if (reference_step.averages) {
      const at::Tensor mean = all.mean(0);
      first_ = 0.9 * first_ + 0.1 * mean;
      second_ = 0.999 * second_ + 0.001 * mean * mean;
    } else {
      first_ = average_(0.9 * first_ + 0.1 * all, used);
    }
    const at::Tensor root =
        (second_ / reference_step.second_correction).sqrt() + 1e-8;
    weights_ = weights_ * (1 - 1e-2 * 0.1) -
               1e-2 * (first_ / (1 - std::pow(0.9, step))) / root;
  }
  const at::Tensor& weights() const {
    return weights_;
  }

 private:
  at::Tensor weights_;
  int ranks_;
  ReferenceAverage average_;
  ReferencePolicy policy_;
  at::Tensor first_;
  at::Tensor second_;
};

/// Algorithm 1 of arXiv:2104.06069 in float64, with corrections of the bias.
class LambReference {
 public:
  LambReference(at::Tensor weights, int ranks)
      : weights_(weights.to(at::kDouble)),
        ranks_(ranks),
        average_(weights.numel(), ranks),
        momentum_(torch::zeros_like(weights_)),
        frozen_(torch::zeros_like(weights_)) {}

  void step(int step) {
    std::vector<at::Tensor> gradients;
    for (int r = 0; r < ranks_; ++r) {
      gradients.push_back(gradient_of(step, r).to(at::kDouble));
    }
    const at::Tensor all = torch::stack(gradients);
    const double first = 1 - std::pow(0.9, step);
    if (step <= kFreeze) {
      const at::Tensor mean = all.mean(0);
      momentum_ = 0.9 * momentum_ + 0.1 * mean;
      frozen_ = 0.999 * frozen_ + 0.001 * mean * mean;
      for (size_t l = 0; l < 2; ++l) {
        const at::Tensor move =
            part(momentum_, l) / first /
                ((part(frozen_, l) / (1 - std::pow(0.999, step))).sqrt() +
                 1e-6) +
            0.1 * part(weights_, l);
        const double ratio = std::min(
            10.0,
            part(weights_, l).norm().item<double>() /
                move.norm().item<double>());
        ratios_[l] = step == 1 ? ratio : 0.9 * ratios_[l] + 0.1 * ratio;
        part(weights_, l).sub_(move, 1e-2 * ratio);
      }
      if (step == kFreeze) {
        frozen_ /= 1 - std::pow(0.999, step);
        fresh_ = frozen_.clone();
        const auto size = [&](size_t l) {
          return part(momentum_, l).square().mean().sqrt().item<double>();
        };
        const double united = (size(0) + size(1)) / 2;
        scales_ = {united / size(0), united / size(1)};
      }
      return;
    }
    const at::Tensor scale = torch::ones_like(weights_);
    for (size_t l = 0; l < 2; ++l) {
      part(scale, l).fill_(scales_[l]);
    }
    const at::Tensor now =
        average_((0.9 * momentum_ + 0.1 * all) * scale, frozen_.ne(0)) / scale;
    const at::Tensor gradient = (now - 0.9 * momentum_) / 0.1;
    momentum_ = now;
    fresh_ = 0.999 * fresh_ + 0.001 * gradient * gradient;
    for (size_t l = 0; l < 2; ++l) {
      const at::Tensor root = part(frozen_, l).sqrt() + 1e-6;
      const at::Tensor direction = part(momentum_, l) / first / root;
      const at::Tensor move = direction + 0.1 * part(weights_, l);
      const double share = std::min(
          1.0, direction.norm().item<double>() / move.norm().item<double>());
      const double largest =
          (root / (part(fresh_, l).sqrt() + 1e-6)).max().item<double>();
      double& factor = factors_[l];
      factor = std::clamp(
          std::clamp(largest * share + 1 - share, 0.5, 4.0),
          factor * 0.9,
          factor * 1.1);
      part(weights_, l).sub_(move, 1e-2 * ratios_[l] * factor);
    }
  }
  const at::Tensor& weights() const {
    return weights_;
  }

 private:
  /// Of the parameters of GivenGradients.
  static at::Tensor part(const at::Tensor& all, size_t parameter) {
    return parameter == 0 ? all.narrow(0, 0, 90 * 50)
                          : all.narrow(0, 90 * 50, 37);
  }

  at::Tensor weights_;
  int ranks_;
  ReferenceAverage average_;
  at::Tensor momentum_;
  at::Tensor frozen_;
  at::Tensor fresh_;
  std::array<double, 2> ratios_{};
  std::array<double, 2> scales_{1, 1};
  std::array<double, 2> factors_{1, 1};
};

at::Tensor all_weights(GivenGradients& net, Engine& engine) {
  const torch::NoGradGuard no_grad;
  const GatherScope scope = engine.gather();
  return torch::cat({net->matrix.reshape({-1}), net->vector}).clone();
}

Engine wrapped(GivenGradients& net, const EngineOptions& options) {
  return wrap(std::shared_ptr<torch::nn::Module>(net.ptr()), options);
}

/// Both are compared after every step; a sign that is wrong, or an error that
/// is forgotten, moves a weight by about the learning rate, 1e-2.
template <typename MakeReference>
void expect_follows(
    World& world,
    const UpdateRule& rule,
    const MakeReference& make_reference,
    int steps) {
  GivenGradients net;
  Engine engine = wrapped(net, options_of(rule));
  auto reference = make_reference(all_weights(net, engine), world.size());
  for (int step = 1; step <= steps; ++step) {
    engine.backward(net->forward(gradient_of(step, world.rank())));
    engine.step();
    reference.step(step);
    const at::Tensor off =
        (all_weights(net, engine).to(at::kDouble) - reference.weights()).abs();
    // Where the sum of a value and its error is nearly zero, rounding to
    // float32 decides.
    ASSERT_LE(off.gt(2e-4).sum().item<int64_t>(), 4)
        << name_of(rule) << ", step " << step << " on " << world.size()
        << " ranks: off by up to " << off.max().item<double>();
  }
}

TEST(OneBitAdam, IsThePapersAlgorithm) {
  const ReferencePolicy policy = [](int step) {
    return ReferenceStep{
        step <= kFreeze, 1 - std::pow(0.999, std::min(step, kFreeze))};
  };
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](World& world) {
      expect_follows(
          world,
          OneBitAdamOptions{.freeze_step = kFreeze},
          [&](const at::Tensor& weights, int size) {
            return Reference(weights, size, policy);
          },
          14);
    });
  }
}

TEST(ZeroOneAdam, UpdatesTheSecondMomentEverLessOften) {
  // Distances 1, 1, 2, 2, 4, ...: steps 1, 2, 4, 6, 10; not 14.
  const std::vector<int> updates{1, 2, 4, 6, 10};
  const ReferencePolicy policy = [&](int step) {
    const auto until = std::count_if(
        updates.begin(), updates.end(), [&](int u) { return u <= step; });
    return ReferenceStep{
        std::find(updates.begin(), updates.end(), step) != updates.end(),
        1 - std::pow(0.999, static_cast<double>(until))};
  };
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](World& world) {
      expect_follows(
          world,
          ZeroOneAdamOptions{.var_freeze_step = 12, .var_update_scaler = 2},
          [&](const at::Tensor& weights, int size) {
            return Reference(weights, size, policy);
          },
          16);
    });
  }
}

TEST(OneBitLamb, IsThePapersAlgorithm) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [&](World& world) {
      expect_follows(
          world,
          OneBitLambOptions{.freeze_step = kFreeze},
          [](const at::Tensor& weights, int size) {
            return LambReference(weights, size);
          },
          14);
    });
  }
}

TEST(OneBitAdam, HasTheBitsOfAdamWBeforeItFreezes) {
  run_ranks(2, [](World& world) {
    const auto trained = [&](const UpdateRule& rule) {
      GivenGradients net;
      Engine engine = wrapped(net, options_of(rule));
      for (int step = 1; step <= 5; ++step) {
        engine.backward(net->forward(gradient_of(step, world.rank())));
        engine.step();
      }
      return all_weights(net, engine);
    };
    EXPECT_TRUE(torch::equal(
        trained(OneBitAdamOptions{.freeze_step = 6}), trained(AdamWOptions{})));
    EXPECT_FALSE(torch::equal(
        trained(OneBitAdamOptions{.freeze_step = 3}), trained(AdamWOptions{})));
  });
}

/// A small network with something to learn, in 16 bits too.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : first(register_module("first", torch::nn::Linear(24, 96))),
        last(register_module("last", torch::nn::Linear(96, 2))) {}
  at::Tensor forward(const at::Tensor& x) {
    return last(torch::tanh(first(x)));
  }
  torch::nn::Linear first;
  torch::nn::Linear last;
};

double trained_loss(
    World& world,
    UpdateRule rule,
    int steps,
    double lr = 2e-3) {
  torch::manual_seed(5);
  const auto net = std::make_shared<NetImpl>();
  EngineOptions options = options_of(std::move(rule));
  options.optimizer.lr = lr;
  options.optimizer.weight_decay = 0;
  Engine engine = wrap(std::shared_ptr<torch::nn::Module>(net), options);
  const auto loss = [&](int step, int rank) {
    torch::manual_seed(7);
    const at::Tensor truth = torch::randn({24, 2});
    torch::manual_seed(1000 * (step + 1) + rank);
    const at::Tensor x = torch::randn({16, 24});
    return (net->forward(x) - torch::tanh(x.matmul(truth) / 5)).square().mean();
  };
  for (int step = 0; step < steps; ++step) {
    engine.backward(loss(step, world.rank()));
    engine.step();
  }
  const torch::NoGradGuard no_grad;
  double sum = 0;
  for (int k = 0; k < 8; ++k) {
    sum += loss(5000, k).item<double>() / 8;
  }
  return sum;
}

// The loss falls by more than half; without error feedback, or with signs of
// another rank, these miss by more.
TEST(OneBitOptimizers, TrainAsWellAsTheirExactTwins) {
  for (const int ranks : {2, 4}) {
    run_ranks(ranks, [](World& world) {
      const double first = trained_loss(world, AdamWOptions{}, 0);
      const double exact = trained_loss(world, AdamWOptions{}, 150);
      EXPECT_LT(exact, first / 2);
      EXPECT_NEAR(
          trained_loss(world, OneBitAdamOptions{.freeze_step = 40}, 150),
          exact,
          first / 20);
      EXPECT_NEAR(
          trained_loss(
              world,
              ZeroOneAdamOptions{
                  .var_freeze_step = 100, .var_update_scaler = 8},
              150),
          exact,
          first / 20);
      EXPECT_NEAR(
          trained_loss(world, OneBitLambOptions{.freeze_step = 40}, 150, 1e-2),
          trained_loss(world, LambOptions{}, 150, 1e-2),
          first / 20);
    });
  }
}

/// Bytes of the collectives of a step of 4 ranks, by kind.
std::map<std::string, double> planned_bytes(UpdateRule rule, int steps) {
  const StepMemoryPlan planned = plan(
      {.make =
           [](World&, ParallelRun&) {
             return std::shared_ptr<torch::nn::Module>(
                 std::make_shared<GivenGradientsImpl>());
           },
       .loss =
           [](torch::nn::Module& module) {
             return dynamic_cast<GivenGradientsImpl&>(module).forward(
                 torch::zeros({GivenGradientsImpl::kNumel}));
           }},
      options_of(std::move(rule)),
      {.world_size = 4, .steps = steps});
  std::map<std::string, double> bytes;
  for (const CollectiveWork& work : planned.collectives) {
    if (work.communicator == "engine replicas") {
      bytes[work.kind] += work.bytes;
    }
  }
  return bytes;
}

TEST(OneBitAdam, SendsAThirtySecond) {
  const OneBitAdamOptions rule{.freeze_step = 2};
  const double float32 = 4.0 * GivenGradientsImpl::kNumel;
  EXPECT_NEAR(planned_bytes(rule, 2)["all_reduce"] / float32, 1, 0.05);
  auto compressed = planned_bytes(rule, 3);
  EXPECT_EQ(compressed["all_reduce"], 0);
  // Scales, and parts of a multiple of 128 elements, add some.
  EXPECT_NEAR(compressed["all_to_all"] / float32 * 32, 1, 0.15);
  EXPECT_NEAR(compressed["all_gather"] / float32 * 32, 1, 0.15);
}

TEST(OneBitAdam, MemoryIsAsPlanned) {
  run_ranks(2, [](World&) {
    GivenGradients net;
    Engine engine = wrapped(net, options_of(OneBitAdamOptions{}));
    const MemoryBytes planned = engine.planned_memory();
    const MemoryBytes measured = engine.measured_memory();
    for (const MemoryPurpose purpose :
         {MemoryPurpose::kOptimizerState, MemoryPurpose::kStaging}) {
      EXPECT_EQ(
          measured[static_cast<size_t>(purpose)],
          planned[static_cast<size_t>(purpose)]);
    }
  });
}

void train(Engine& engine, GivenGradients& net, int rank, int from, int to) {
  for (int step = from; step <= to; ++step) {
    engine.backward(net->forward(gradient_of(step, rank)));
    engine.step();
  }
}

void expect_resumes(const UpdateRule& rule) {
  const TemporaryFolder folder;
  const EngineOptions options = options_of(rule);
  run_ranks(4, [&](World& world) {
    GivenGradients net;
    Engine engine = wrapped(net, options);
    train(engine, net, world.rank(), 1, 6);
    engine.save(folder.path());
    train(engine, net, world.rank(), 7, 10);
    GivenGradients other;
    Engine resumed = wrapped(other, options);
    resumed.load(folder.path());
    train(resumed, other, world.rank(), 7, 10);
    EXPECT_TRUE(
        torch::equal(all_weights(other, resumed), all_weights(net, engine)));
  });
  const auto results = tests::run_ranks_expecting(2, [&](World& world) {
    GivenGradients net;
    Engine engine = wrapped(net, options);
    engine.load(folder.path());
    train(engine, net, world.rank(), 7, 8);
  });
  for (const auto& result : results) {
    EXPECT_EQ(result.exit_code, 0) << result.output;
    EXPECT_NE(result.output.find("begins at zero"), std::string::npos)
        << result.output;
  }
}

TEST(OneBitOptimizers, ResumeBitForBitAndOnOtherRanksWithoutErrors) {
  expect_resumes(OneBitAdamOptions{.freeze_step = 3});
  expect_resumes(ZeroOneAdamOptions{.var_update_scaler = 2});
  expect_resumes(OneBitLambOptions{.freeze_step = 3});
}

TEST(OneBitAdam, RefusesWhatItCannotDo) {
  run_ranks(2, [](World& world) {
    EngineOptions options = options_of(OneBitAdamOptions{});
    GivenGradients net;
    {
      EngineOptions divided = options;
      divided.sharding.shard_ranks = 0;
      tests::expect_throws(
          [&] { wrapped(net, divided); },
          {"1-bit Adam", "sharding.shard_ranks to 1"});
    }
    {
      EngineOptions half = options;
      half.precision.parameters = at::kHalf;
      tests::expect_throws(
          [&] { wrapped(net, half); }, {"1-bit Adam", "loss scaling"});
    }
    GivenGradients other;
    Engine engine = wrapped(other, options);
    engine.backward(other->forward(gradient_of(1, world.rank())));
    tests::expect_throws(
        [&] { engine.clip_grad_norm(1); },
        {"clip_grad_norm", "exchanges momentum"});
  });
}

} // namespace

} // namespace tessera::one_bit_optimizers_test
