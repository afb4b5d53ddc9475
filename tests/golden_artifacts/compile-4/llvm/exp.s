	.file	"<string>"
	.section	.rodata.cst16,"aM",@progbits,16
	.p2align	4, 0x0
.LCPI0_0:
	.long	0xc2d00000
	.long	0xc2d00000
	.long	0xc2d00000
	.long	0xc2d00000
.LCPI0_1:
	.long	0x42b20000
	.long	0x42b20000
	.long	0x42b20000
	.long	0x42b20000
.LCPI0_2:
	.long	0x4b40007e
	.long	0x4b40007e
	.long	0x4b40007e
	.long	0x4b40007e
.LCPI0_3:
	.long	0x4b400098
	.long	0x4b400098
	.long	0x4b400098
	.long	0x4b400098
.LCPI0_4:
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
.LCPI0_5:
	.long	0xbf317200
	.long	0xbf317200
	.long	0xbf317200
	.long	0xbf317200
.LCPI0_6:
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
.LCPI0_7:
	.long	0x3ab5121b
	.long	0x3ab5121b
	.long	0x3ab5121b
	.long	0x3ab5121b
.LCPI0_8:
	.long	0x3c091cf0
	.long	0x3c091cf0
	.long	0x3c091cf0
	.long	0x3c091cf0
.LCPI0_9:
	.long	0x3d2aac79
	.long	0x3d2aac79
	.long	0x3d2aac79
	.long	0x3d2aac79
.LCPI0_10:
	.long	0x3e2aaa49
	.long	0x3e2aaa49
	.long	0x3e2aaa49
	.long	0x3e2aaa49
.LCPI0_11:
	.long	0x3efffffe
	.long	0x3efffffe
	.long	0x3efffffe
	.long	0x3efffffe
.LCPI0_12:
	.long	0x3f800000
	.long	0x3f800000
	.long	0x3f800000
	.long	0x3f800000
.LCPI0_13:
	.long	0x40000000
	.long	0x40000000
	.long	0x40000000
	.long	0x40000000
.LCPI0_14:
	.long	0x33000000
	.long	0x33000000
	.long	0x33000000
	.long	0x33000000
	.text
	.globl	exp
	.p2align	4
	.type	exp,@function
exp:
	.cfi_startproc
	pushq	%r15
	.cfi_def_cfa_offset 16
	pushq	%r14
	.cfi_def_cfa_offset 24
	pushq	%r12
	.cfi_def_cfa_offset 32
	pushq	%rbx
	.cfi_def_cfa_offset 40
	subq	$24, %rsp
	.cfi_def_cfa_offset 64
	.cfi_offset %rbx, -40
	.cfi_offset %r12, -32
	.cfi_offset %r14, -24
	.cfi_offset %r15, -16
	movq	%rdx, %rbx
	movq	%rsi, %r14
	movq	%rdi, %r15
	movq	%rdx, %r12
	sarq	$6, %r12
	movq	%rdi, (%rsp)
	movq	%rsi, 8(%rsp)
	movq	%rdx, 16(%rsp)
	leaq	exp.body0.entry(%rip), %rdi
	movq	%rsp, %rsi
	movq	%r12, %rdx
	callq	kiln_parallel_for@PLT
	movq	%rbx, %rax
	andq	$-64, %rax
	cmpq	%rbx, %rax
	jge	.LBB0_3
	shlq	$10, %r12
	movaps	.LCPI0_4(%rip), %xmm5
	movaps	.LCPI0_5(%rip), %xmm6
	movaps	.LCPI0_6(%rip), %xmm7
	movaps	.LCPI0_7(%rip), %xmm8
	movaps	.LCPI0_8(%rip), %xmm9
	movaps	.LCPI0_9(%rip), %xmm10
	movaps	.LCPI0_10(%rip), %xmm11
	movaps	.LCPI0_11(%rip), %xmm12
	movaps	.LCPI0_12(%rip), %xmm13
	movaps	.LCPI0_13(%rip), %xmm14
	movaps	.LCPI0_14(%rip), %xmm15
	.p2align	4
.LBB0_2:
	movups	(%r15,%r12), %xmm0
	movaps	.LCPI0_0(%rip), %xmm2
	maxps	%xmm0, %xmm2
	movaps	.LCPI0_1(%rip), %xmm4
	minps	%xmm2, %xmm4
	movaps	%xmm4, %xmm1
	xorps	%xmm0, %xmm0
	cmpltps	%xmm0, %xmm1
	movaps	%xmm1, %xmm2
	andnps	.LCPI0_2(%rip), %xmm2
	movaps	%xmm1, %xmm0
	andps	.LCPI0_3(%rip), %xmm0
	orps	%xmm2, %xmm0
	movaps	%xmm4, %xmm3
	mulps	%xmm5, %xmm3
	addps	%xmm0, %xmm3
	movaps	%xmm3, %xmm2
	subps	%xmm0, %xmm2
	movaps	%xmm2, %xmm0
	mulps	%xmm6, %xmm0
	addps	%xmm4, %xmm0
	mulps	%xmm7, %xmm2
	addps	%xmm0, %xmm2
	movaps	%xmm2, %xmm0
	mulps	%xmm8, %xmm0
	addps	%xmm9, %xmm0
	mulps	%xmm2, %xmm0
	addps	%xmm10, %xmm0
	mulps	%xmm2, %xmm0
	addps	%xmm11, %xmm0
	mulps	%xmm2, %xmm0
	addps	%xmm12, %xmm0
	movaps	%xmm2, %xmm4
	mulps	%xmm2, %xmm4
	mulps	%xmm0, %xmm4
	addps	%xmm2, %xmm4
	addps	%xmm13, %xmm4
	pslld	$23, %xmm3
	mulps	%xmm4, %xmm3
	movaps	%xmm1, %xmm0
	andnps	%xmm14, %xmm0
	andps	%xmm15, %xmm1
	orps	%xmm0, %xmm1
	mulps	%xmm3, %xmm1
	movups	%xmm1, (%r14,%r12)
	incq	%rax
	addq	$16, %r12
	cmpq	%rbx, %rax
	jl	.LBB0_2
.LBB0_3:
	addq	$24, %rsp
	.cfi_def_cfa_offset 40
	popq	%rbx
	.cfi_def_cfa_offset 32
	popq	%r12
	.cfi_def_cfa_offset 24
	popq	%r14
	.cfi_def_cfa_offset 16
	popq	%r15
	.cfi_def_cfa_offset 8
	retq
.Lfunc_end0:
	.size	exp, .Lfunc_end0-exp
	.cfi_endproc

	.p2align	4
	.type	exp.body0.entry,@function
exp.body0.entry:
	.cfi_startproc
	pushq	%rax
	.cfi_def_cfa_offset 16
	movq	%rdx, %r8
	movq	%rsi, %rcx
	movq	(%rdi), %rax
	movq	8(%rdi), %rsi
	movq	16(%rdi), %rdx
	movq	%rax, %rdi
	callq	exp.body0
	popq	%rax
	.cfi_def_cfa_offset 8
	retq
.Lfunc_end1:
	.size	exp.body0.entry, .Lfunc_end1-exp.body0.entry
	.cfi_endproc

	.section	.rodata.cst16,"aM",@progbits,16
	.p2align	4, 0x0
.LCPI2_0:
	.long	0xc2d00000
	.long	0xc2d00000
	.long	0xc2d00000
	.long	0xc2d00000
.LCPI2_1:
	.long	0x42b20000
	.long	0x42b20000
	.long	0x42b20000
	.long	0x42b20000
.LCPI2_2:
	.long	0x4b40007e
	.long	0x4b40007e
	.long	0x4b40007e
	.long	0x4b40007e
.LCPI2_3:
	.long	0x4b400098
	.long	0x4b400098
	.long	0x4b400098
	.long	0x4b400098
.LCPI2_4:
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
	.long	0x3fb8aa3b
.LCPI2_5:
	.long	0xbf317200
	.long	0xbf317200
	.long	0xbf317200
	.long	0xbf317200
.LCPI2_6:
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
	.long	0xb5bfbe8e
.LCPI2_7:
	.long	0x3ab5121b
	.long	0x3ab5121b
	.long	0x3ab5121b
	.long	0x3ab5121b
.LCPI2_8:
	.long	0x3c091cf0
	.long	0x3c091cf0
	.long	0x3c091cf0
	.long	0x3c091cf0
.LCPI2_9:
	.long	0x3d2aac79
	.long	0x3d2aac79
	.long	0x3d2aac79
	.long	0x3d2aac79
.LCPI2_10:
	.long	0x3e2aaa49
	.long	0x3e2aaa49
	.long	0x3e2aaa49
	.long	0x3e2aaa49
.LCPI2_11:
	.long	0x3efffffe
	.long	0x3efffffe
	.long	0x3efffffe
	.long	0x3efffffe
.LCPI2_12:
	.long	0x3f800000
	.long	0x3f800000
	.long	0x3f800000
	.long	0x3f800000
.LCPI2_13:
	.long	0x40000000
	.long	0x40000000
	.long	0x40000000
	.long	0x40000000
.LCPI2_14:
	.long	0x33000000
	.long	0x33000000
	.long	0x33000000
	.long	0x33000000
	.text
	.p2align	4
	.type	exp.body0,@function
exp.body0:
	.cfi_startproc
	cmpq	%r8, %rcx
	jge	.LBB2_5
	movq	%rcx, %rax
	shlq	$10, %rax
	addq	%rax, %rsi
	addq	%rax, %rdi
	movaps	.LCPI2_0(%rip), %xmm2
	movaps	.LCPI2_1(%rip), %xmm4
	xorps	%xmm3, %xmm3
	movaps	.LCPI2_12(%rip), %xmm8
	movaps	.LCPI2_13(%rip), %xmm9
	movaps	.LCPI2_6(%rip), %xmm11
	movaps	.LCPI2_7(%rip), %xmm12
	movaps	.LCPI2_8(%rip), %xmm13
	movaps	.LCPI2_9(%rip), %xmm14
	movaps	.LCPI2_10(%rip), %xmm15
	movaps	.LCPI2_11(%rip), %xmm7
	movaps	.LCPI2_14(%rip), %xmm10
	.p2align	4
.LBB2_2:
	xorl	%eax, %eax
	xorl	%edx, %edx
	.p2align	4
.LBB2_3:
	movups	(%rdi,%rax), %xmm0
	movaps	%xmm2, %xmm5
	maxps	%xmm0, %xmm2
	movaps	%xmm4, %xmm6
	minps	%xmm2, %xmm4
	movaps	%xmm4, %xmm1
	cmpltps	%xmm3, %xmm1
	movaps	%xmm1, %xmm2
	andnps	.LCPI2_2(%rip), %xmm2
	movaps	%xmm1, %xmm0
	andps	.LCPI2_3(%rip), %xmm0
	orps	%xmm2, %xmm0
	movaps	%xmm4, %xmm3
	mulps	.LCPI2_4(%rip), %xmm3
	addps	%xmm0, %xmm3
	movaps	%xmm3, %xmm2
	subps	%xmm0, %xmm2
	movaps	%xmm2, %xmm0
	mulps	.LCPI2_5(%rip), %xmm0
	addps	%xmm4, %xmm0
	mulps	%xmm11, %xmm2
	addps	%xmm0, %xmm2
	movaps	%xmm2, %xmm0
	mulps	%xmm12, %xmm0
	addps	%xmm13, %xmm0
	mulps	%xmm2, %xmm0
	addps	%xmm14, %xmm0
	mulps	%xmm2, %xmm0
	addps	%xmm15, %xmm0
	mulps	%xmm2, %xmm0
	addps	%xmm7, %xmm0
	movaps	%xmm2, %xmm4
	mulps	%xmm2, %xmm4
	mulps	%xmm0, %xmm4
	addps	%xmm2, %xmm4
	movaps	%xmm5, %xmm2
	addps	%xmm8, %xmm4
	pslld	$23, %xmm3
	mulps	%xmm4, %xmm3
	movaps	%xmm6, %xmm4
	movaps	%xmm1, %xmm0
	andnps	%xmm9, %xmm0
	andps	%xmm10, %xmm1
	orps	%xmm0, %xmm1
	mulps	%xmm3, %xmm1
	xorps	%xmm3, %xmm3
	movups	%xmm1, (%rsi,%rax)
	incq	%rdx
	addq	$16, %rax
	cmpq	$64, %rdx
	jl	.LBB2_3
	incq	%rcx
	addq	$1024, %rsi
	addq	$1024, %rdi
	cmpq	%r8, %rcx
	jl	.LBB2_2
.LBB2_5:
	retq
.Lfunc_end2:
	.size	exp.body0, .Lfunc_end2-exp.body0
	.cfi_endproc

	.section	".note.GNU-stack","",@progbits
