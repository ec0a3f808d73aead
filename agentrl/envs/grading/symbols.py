"""Characters that LaTeX's macros stand for: `alpha` is α. Facts of the fonts, as a table."""

__all__ = ["SYMBOLS"]

_NAMES_AND_CHARACTERS = """
AA Å AE Æ Alpha Α Angle ⦜ Beta Β Bumpeq ≎ Cap ⋒ Chi Χ Colon ∷ Cup ⋓ DH Ð DJ Đ Delta Δ
Digamma Ϝ DownArrowBar ⤓ DownArrowUpArrow ⇵ DownLeftRightVector ⥐ DownLeftTeeVector ⥞
DownLeftVectorBar ⥖ DownRightTeeVector ⥟ DownRightVectorBar ⥗ Downarrow ⇓ Epsilon Ε Equal ⩵
Eta Η Gamma Γ IJ Ĳ Ident 𝕀 Iota Ι Kappa Κ Koppa Ϟ L Ł Lambda Λ LeftDownTeeVector ⥡
LeftDownVectorBar ⥙ LeftRightVector ⥎ LeftTeeVector ⥚ LeftTriangleBar ⧏ LeftUpDownVector ⥑
LeftUpTeeVector ⥠ LeftUpVectorBar ⥘ LeftVectorBar ⥒ Leftarrow ⇐ Leftrightarrow ⇔ Lleftarrow ⇚
Longleftarrow ⟸ Longleftrightarrow ⟺ Longrightarrow ⟹ Lsh ↰ Mu Μ NG Ŋ NestedGreaterGreater ⪢
NestedLessLess ⪡ Nu Ν O Ø OE Œ Omega Ω Omicron Ο Phi Φ Pi Π Psi Ψ ReverseUpEquilibrium ⥯
Rho Ρ RightDownTeeVector ⥝ RightDownVectorBar ⥕ RightTeeVector ⥛ RightTriangleBar ⧐
RightUpDownVector ⥏ RightUpTeeVector ⥜ RightUpVectorBar ⥔ RightVectorBar ⥓ Rightarrow ⇒
RoundImplies ⥰ Rrightarrow ⇛ Rsh ↱ RuleDelayed ⧴ Sampi Ϡ Sigma Σ Stigma Ϛ Subset ⋐ Supset ⋑
TH Þ Tau Τ Theta Θ UpArrowBar ⤒ UpEquilibrium ⥮ Uparrow ⇑ Updownarrow ⇕ Upsilon Υ VDash ⊫
Vdash ⊩ Vert ‖ Vvdash ⊪ Xi Ξ Zeta Ζ aa å ae æ aleph ℵ allequal ≌ alpha α amalg ⨿ angle ∠
approx ≈ approxeq ≊ approxnotequal ≆ aquarius ♒ aries ♈ arrowwaveleft ↜ arrowwaveright ↝
ast ∗ asymp ≍ backepsilon ϶ backprime ‵ backsim ∽ backsimeq ⋍ barwedge ⌅ because ∵ beta β
beth ℶ between ≬ bigcap ⋂ bigcirc ◯ bigcup ⋃ bigoplus ⊕ bigotimes ⊗ bigtriangledown ▽
bigtriangleup △ bigvee ⋁ bigwedge ⋀ blacklozenge ⧫ blacksquare ▪ blacktriangle ▴
blacktriangledown ▾ blacktriangleleft ◂ blacktriangleright ▸ bowtie ⋈ boxdot ⊡ boxminus ⊟
boxplus ⊞ boxtimes ⊠ bullet ∙ bumpeq ≏ cancer ♋ cap ∩ capricornus ♑ cdot · cdots ⋯ chi χ
circ ∘ circeq ≗ circlearrowleft ↺ circlearrowright ↻ circledS Ⓢ circledast ⊛ circledcirc ⊚
circleddash ⊝ clockoint ⨏ clwintegral ∱ complement ∁ cong ≅ coprod ∐ cup ∪ curlyeqprec ⋞
curlyeqsucc ⋟ curlyvee ⋎ curlywedge ⋏ curvearrowleft ↶ curvearrowright ↷ dag † dagger †
daleth ℸ dashv ⊣ dblarrowupdown ⇅ ddddot ⃜ dddot ⃛ ddots ⋱ delta δ dh ð diagup ╱ diamond ♢
digamma ϝ div ÷ divideontimes ⋇ dj đ doteq ≐ doteqdot ≑ dotplus ∔ dots … dotsb … dotsc …
dotsi … dotsm … dotso … downarrow ↓ downdownarrows ⇊ downharpoonleft ⇃ downharpoonright ⇂
downslopeellipsis ⋱ eighthnote ♪ ell ℓ emptyset ∅ epsilon ϵ eqcirc ≖ eqslantgtr ⪖
eqslantless ⪕ equiv ≡ estimates ≙ eta η eth ƪ exists ∃ fallingdotseq ≒ flat ♭ forall ∀
forcesextra ⊨ frown ⌢ gamma γ ge ≥ gemini ♊ geq ≥ geqq ≧ geqslant ⩾ gg ≫ gimel ℷ gnapprox ⪊
gneq ⪈ gneqq ≩ gnsim ⋧ greaterequivlnt ≳ gtrapprox ⪆ gtrdot ⋗ gtreqless ⋛ gtreqqless ⪌
gtrless ≷ gtrsim ≳ guillemotleft « guillemotright » guilsinglleft ‹ guilsinglright › hbar ħ
hermitconjmatrix ⊹ homothetic ∻ hookleftarrow ↩ hookrightarrow ↪ hslash ℏ i ı id 𝕀 iddots ⋰
iiint ∭ iint ∬ ij ĳ image ⊷ in ∈ infty ∞ int ∫ intercal ⊺ iota ι j ȷ jupiter ♃ kappa κ l ł
lVert ‖ lambda λ langle ⟨ lazysinv ∾ lbrace { lceil ⌈ ldots … le ≤ leftarrow ←
leftarrowtail ↢ leftharpoondown ↽ leftharpoonup ↼ leftleftarrows ⇇ leftrightarrow ↔
leftrightarrows ⇆ leftrightharpoons ⇋ leftrightsquigarrow ↭ leftthreetimes ⋋ leo ♌ leq ≤
leqq ≦ leqslant ⩽ lessapprox ⪅ lessdot ⋖ lesseqgtr ⋚ lesseqqgtr ⪋ lessequivlnt ≲ lessgtr ≶
lesssim ≲ lfloor ⌊ libra ♎ ll ≪ llcorner ⌞ lmoustache ⎰ lnapprox ⪉ lneq ⪇ lneqq ≨ lnot ¬
lnsim ⋦ longleftarrow ⟵ longleftrightarrow ⟷ longmapsto ⟼ longrightarrow ⟶ looparrowleft ↫
looparrowright ↬ lozenge ◊ lrcorner ⌟ ltimes ⋉ lvert | male ♂ mapsto ↦ measuredangle ∡
mercury ☿ mho ℧ mid | mp ∓ mu μ multimap ⊸ nLeftarrow ⇍ nLeftrightarrow ⇎ nRightarrow ⇏
nVDash ⊯ nVdash ⊮ nabla ∇ natural ♮ nearrow ↗ neptune ♆ neq ≠ nexists ∄ ng ŋ ngeq ≱ ngtr ≯
ni ∋ nleftarrow ↚ nleftrightarrow ↮ nleq ≰ nless ≮ nmid ∤ notgreaterless ≹ notin ∉
notlessgreater ≸ nparallel ∦ nprec ⊀ nrightarrow ↛ nsubseteq ⊈ nsucc ⊁ nsupseteq ⊉
ntriangleleft ⋪ ntrianglelefteq ⋬ ntriangleright ⋫ ntrianglerighteq ⋭ nu ν nvDash ⊭ nvdash ⊬
nwarrow ↖ o ø odot ⊙ oe œ oint ∮ omega ω omicron ο ominus ⊖ openbracketleft 〚
openbracketright 〛 oplus ⊕ original ⊶ oslash ⊘ otimes ⊗ parallel ∥ partial ∂ perp ⊥
perspcorrespond ⩞ phi ϕ pi π pisces ♓ pitchfork ⋔ pluto ♇ pm ± prec ≺ precapprox ⪷
preccurlyeq ≼ precedesnotsimilar ⋨ preceq ≼ precnapprox ⪹ precneqq ⪵ precsim ≾ prime ' prod ∏
propto ∝ psi ψ quarternote ♩ quotedblbase „ quotesinglbase ‚ rVert ‖ rangle ⟩ rbrace }
rceil ⌉ recorder ⌕ rfloor ⌋ rho ρ rightangle ∟ rightanglearc ⊾ rightarrow → rightarrowtail ↣
rightharpoondown ⇁ rightharpoonup ⇀ rightleftarrows ⇄ rightleftharpoons ⇌ rightmoon ☾
rightrightarrows ⇉ rightsquigarrow ⇝ rightthreetimes ⋌ risingdotseq ≓ rmoustache ⎱ rtimes ⋊
rvert | sagittarius ♐ saturn ♄ scorpio ♏ searrow ↘ setminus ∖ sharp ♯ sigma σ sim ∼ simeq ≃
smallsetminus ∖ smile ⌣ sphericalangle ∢ sqcap ⊓ sqcup ⊔ sqrint ⨖ sqsubset ⊏ sqsubseteq ⊑
sqsupset ⊐ sqsupseteq ⊒ square □ ss ß star ⋆ starequal ≛ subset ⊂ subseteq ⊆ subseteqq ⫅
subsetneq ⊊ subsetneqq ⫋ succ ≻ succapprox ⪸ succcurlyeq ≽ succeq ≽ succnapprox ⪺ succneqq ⪶
succnsim ⋩ succsim ≿ sum ∑ supset ⊃ supseteq ⊇ supseteqq ⫆ supsetneq ⊋ supsetneqq ⫌ surd √
surfintegral ∯ swarrow ↙ tau τ taurus ♉ textTheta ϴ textacutedbl ˝ textasciiacute ´
textasciibreve ˘ textasciicaron ˇ textasciicircum ˆ textasciidieresis ¨ textasciigrave `
textasciimacron ¯ textasciitilde ~ textasteriskcentered ⁎ textbaht ฿ textbigcircle ◯
textblank ␢ textbrokenbar ¦ textbullet • textcelsius ℃ textcent ¢ textcircledP ℗
textcolonmonetary ₡ textcompwordmark ‌ textcopyright © textcurrency ¤ textdagger †
textdaggerdbl ‡ textdegree ° textdiscount ⁒ textdiv ÷ textdollar $ textdong ₫
textdoublepipe ǂ textdownarrow ↓ textellipsis … textemdash — textendash – textestimated ℮
texteuro € textexclamdown ¡ textflorin ƒ textfrac %s/%s textfractionsolidus ⁄ textglotstop ʔ
texthvlig ƕ textinterrobang ‽ textlangle 〈 textleftarrow ← textlira ₤ textlnot ¬ textmho ℧
textmp ∓ textmu µ textmusicalnote ♪ textnaira ₦ textnrleg ƞ textnumero № textohm Ω
textonehalf ½ textonequarter ¼ textonesuperior ¹ textopenbullet ◦ textordfeminine ª
textordmasculine º textparagraph ¶ textperiodcentered ˙ textpertenthousand ‱
textperthousand ‰ textpeso ₱ textphi ɸ textpm ± textquestiondown ¿ textquotedblleft “
textquotedblright ” textquoteleft ‘ textquoteright ’ textquotesingle ' textrangle 〉
textrecipe ℞ textreferencemark ※ textregistered ® textrightarrow → textschwa ə textsection §
textservicemark ℠ textsterling £ texttheta θ textthreequarters ¾ textthreesuperior ³
texttildelow ˜ texttimes × texttrademark ™ textturnk ʞ texttwosuperior ² textuparrow ↑
textvartheta ϑ textvisiblespace ␣ textwon ₩ textyen ¥ th þ therefore ∴ theta θ tildetrpl ≋
times × to → top ⊤ triangledown ▿ triangleleft ◃ trianglelefteq ⊴ triangleq ≜ triangleright ▹
trianglerighteq ⊵ truestate ⊧ twoheadleftarrow ↞ twoheadrightarrow ↠ udots ⋰ ulcorner ⌜
uparrow ↑ updownarrow ↕ upharpoonleft ↿ upharpoonright ↾ uplus ⊎ upsilon υ upslopeellipsis ⋰
upuparrows ⇈ uranus ♅ urcorner ⌝ varepsilon ε varkappa ϰ varnothing ∅ varperspcorrespond ⌆
varphi φ varpi ϖ varrho ϱ varsigma ς vartheta ϑ vartriangle ▵ vartriangleleft ⊲
vartriangleright ⊳ vdash ⊢ vdots ⋮ vee ∨ veebar ⊻ venus ♀ vert | verymuchgreater ⋙
verymuchless ⋘ virgo ♍ volintegral ∰ wedge ∧ wp ℘ wr ≀ xi ξ zeta ζ"""
_THEMSELVES = """
arccos arccosh arcsin arcsinh arctan arctanh cos cosh exp inf lim ln log max min sin sinh sup tan
tanh
"""
_words = _NAMES_AND_CHARACTERS.split()

#: Names of macros without arguments, each with what it prints.
SYMBOLS = {
    **dict(zip(_words[::2], _words[1::2], strict=True)),
    **{name: name for name in _THEMSELVES.split()},
    "enskip": "\u2002",
    "quad": "  ",
    "qquad": "    ",
    "backslash": "\\",
    "liminf": "lim inf",
    "limsup": "lim sup",
}
