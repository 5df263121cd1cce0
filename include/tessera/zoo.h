// SPDX-License-Identifier: Apache-2.0
#pragma once
// Models of the zoo: from a folder or a configuration, their heads, adapters
// and generation. Link tessera::zoo.

#include "tessera/text/tokenizer/tokenizer.h"
#include "tessera/zoo/adapters/lora.h"
#include "tessera/zoo/generation/text_generator.h"
#include "tessera/zoo/heads/head.h"
#include "tessera/zoo/models/model.h"
#include "tessera/zoo/models/pipeline_model.h"
#include "tessera/zoo/models/pretrained.h"
#include "tessera/zoo/models/registry.h"
