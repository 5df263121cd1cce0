// SPDX-License-Identifier: Apache-2.0
#pragma once
// Numbers functions `main()`, so that programs compile as one file.

#define TESSERA_JOINED_ONCE(a, b) a##b
#define TESSERA_JOINED(a, b) TESSERA_JOINED_ONCE(a, b)
#define main TESSERA_JOINED(numbered_main_, __COUNTER__)
