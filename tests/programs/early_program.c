// SPDX-License-Identifier: Apache-2.0
// Says what the library's constructor did.
#include <stdio.h>

long early(void);

int main(void)
{
	printf("early %ld\n", early());
	return 0;
}
