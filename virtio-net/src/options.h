// SPDX-License-Identifier: BSD-2-Clause
// Which options are compiled in. What is not costs no code and no instruction.
#ifndef VNET_OPTIONS_INTERNAL_H
#define VNET_OPTIONS_INTERNAL_H

#include "vnet_options.h"

#ifndef VNET_OPTIONS
#define VNET_OPTIONS 0u
#endif

#define HAS(option) (((VNET_OPTIONS)&VNET_OPTION_##option) != 0)

#endif
