// SPDX-License-Identifier: Apache-2.0
// Settings of an accelerator in a configuration.
#include "support/expect_error.h"
#include "support/vdev/vdev.h"
#include "tessera/engine/device_config.h"
#include "tessera/runtime/core/config.h"
#include "tessera/runtime/memory/product_padding.h"

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>

namespace tessera::tests::vdev::vdev_device_config_test {

TEST(DeviceConfig, Float32MatrixProductsUseTf32OnlyOnRequest) {
  run_ranks_on_vdev(1, {Policy::Order::kEager}, [](World& world) {
    const auto options_of = [](const char* text) {
      engine::DeviceOptions options;
      runtime::read_fields(
          runtime::ConfigReader(nlohmann::json::parse(text), "run.json"),
          options);
      return options;
    };
    EXPECT_EQ(&engine::init_on(options_of("{}")), &world);
    EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
    engine::init_on(options_of(R"({"cuda_matmul": "tf32"})"));
    EXPECT_TRUE(at::globalContext().allowTF32CuBLAS());
    EXPECT_TRUE(runtime::plans_padded_products());
    engine::init_on(options_of(R"({"fused": "off"})"));
    EXPECT_FALSE(runtime::plans_padded_products());
    const InitOptions usual = engine::init_options(options_of("{}"));
    EXPECT_EQ(usual.timeout, InitOptions().timeout);
    EXPECT_EQ(usual.keep_freed_memory, InitOptions().keep_freed_memory);
    EXPECT_EQ(usual.use_cuda, InitOptions().use_cuda);
    const InitOptions changed = engine::init_options(options_of(
        R"({"timeout_s": 1.5, "keep_freed_memory": false, "device": "cpu"})"));
    EXPECT_EQ(changed.timeout, std::chrono::milliseconds(1500));
    EXPECT_FALSE(changed.keep_freed_memory);
    EXPECT_FALSE(changed.use_cuda);
    expect_error(
        [&] { options_of(R"({"cuda_matmul": "high"})"); },
        {"cuda_matmul", "float32", "tf32"});
  });
}

} // namespace tessera::tests::vdev::vdev_device_config_test
